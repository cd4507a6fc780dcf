/* Makes a player of the picture beside this script. Its state is the page: it needs no
   kernel and no network. Where no script may run, that picture stays as it is. */
((page, { stepped, states, pieces }) => {
  const player = document.createElement("form");
  const [name, last] = [stepped ? "Step" : "Show", states.length - 1];
  player.className = "ringside-player";
  player.innerHTML = `<style>STYLE</style>
    <div class="time" ${stepped ? "" : "hidden"}>
      <button type="button">Play</button>
      <input type="range" value="0" max="${last}" aria-label="${name}">
      <label><input type="checkbox"> Repeat</label>
    </div>
    <div class="choice" role="radiogroup" aria-label="${name}">${name}</div>
    <div class="stage" role="group" aria-label="Picture" tabindex="0"></div>
    <p role="status"></p>
    <details><summary>In words</summary><ul></ul></details>`;
  const [play, slider, repeat, choice, stage, caption, facts] = [
    "button", "[type=range]", "[type=checkbox]", ".choice", ".stage", "p", "ul",
  ].map((selector) => player.querySelector(selector));
  const make = (tag, how, inside = []) => {
    const made = Object.assign(document.createElement(tag), how);
    made.append(...inside);
    return made;
  };
  const tags = pieces.split(/(?=<)/);
  states.forEach(({ label, words, style, parts }, i) => {
    const button = make("input", { type: "radio", name: "state", value: i });
    choice.append(make("label", {}, [button, label]));
    const svg = encodeURIComponent(parts.map((part) => tags[part]).join(""));
    const src = `data:image/svg+xml,${svg}`;
    stage.append(make("img", { src, style, alt: words.join(" ") }));
  });

  let now, timer;
  const show = (state) => {
    now = slider.value = Math.min(Math.max(state, 0), last);
    [...stage.children].forEach((picture, i) => {
      picture.style.visibility = i === now ? "" : "hidden"; // its room stays
    });
    choice.children[now].control.checked = true;
    const [first, ...rest] = states[now].words;
    caption.textContent = first;
    facts.replaceChildren(...rest.map((fact) => make("li", {}, [fact])));
  };
  const run = (on) => {
    clearInterval(timer);
    timer = on && setInterval(next, 1400);
    play.textContent = on ? "Pause" : "Play";
  };
  const next = () => {
    if (now === last && !(repeat.checked && player.isConnected)) run(false);
    else show(now === last ? 0 : now + 1);
  };
  const step = (state) => {
    run(false);
    show(state);
  };
  play.onclick = () => {
    if (!timer && now === last) show(0);
    run(!timer);
  };
  player.oninput = ({ target }) => target === repeat || step(Number(target.value));
  player.onkeydown = (event) => {
    const { key, target } = event;
    if (event.ctrlKey || event.metaKey || event.altKey || event.shiftKey) return;
    if (key !== "Tab" && key !== "Escape") event.stopPropagation();
    // or Jupyter takes a key for a command: an arrow would leave the cell
    const scrolls = stage.scrollWidth > stage.clientWidth && target === stage;
    const own = target.matches("[type=radio], [type=range]"); // they step by themselves
    if (scrolls || own || !/^Arrow(Left|Right)$/.test(key)) return;
    step(now + (key === "ArrowRight" ? 1 : -1));
  };
  player.onsubmit = () => false; // Enter sends nothing away
  show(0);
  page.querySelector("figure").replaceWith(player);
})(document.currentScript.parentElement, DATA);
