// Bets and answers on a page: compared, judged, kept in this browser, forgotten.
(() => {
  "use strict";
  // Of a file, a browser may not read what the search would show below a title.
  if (location.protocol === "file:" && typeof DOCUMENTATION_OPTIONS === "object")
    DOCUMENTATION_OPTIONS.SHOW_SEARCH_SUMMARY = false;

  // The search finds pages that have every word. If none has, it shows those that
  // have most of them: who asks has other words than who answers.
  if (typeof Search === "object") {
    const everyWord = Search.performTermsSearch;
    Search.performTermsSearch = (words, without) => {
      const found = everyWord(words, without);
      if (found.length || words.size < 2) return found;
      const pages = new Map();
      for (const word of words)
        for (const row of everyWord(new Set([word]), without)) {
          const [had, score] = pages.get(row[0]) ?? [0, 0];
          pages.set(row[0], [had + 1, score + row[4], row]);
        }
      const most = Math.max(0, ...[...pages.values()].map(([had]) => had));
      return [...pages.values()].filter(([had]) => had > most / 2)
        .map(([had, score, row]) => row.with(4, 100 * had + score));
    };
  }

  // Tables of sentences, and those that have no room: a phone shows them as cards.
  for (const table of document.querySelectorAll("article table")) {
    const [head, ...rows] = table.rows, columns = head?.cells.length ?? 0;
    const sentences = columns > 2 && table.textContent.length > 100 * table.rows.length;
    const words = [...table.querySelectorAll("td .pre")].map(word => word.textContent);
    const wide = table.scrollWidth > table.parentElement.clientWidth;
    if (!sentences && !wide && !words.some(word => word.length > 14)) continue;
    table.classList.add("ringside-long");
    for (const row of columns > 3 ? rows : [])
      for (const cell of [...row.cells].slice(1))
        cell.dataset.head = head.cells[cell.cellIndex].textContent.trim();
  }

  const page = location.pathname.split("/").pop();
  const place = (form, input) => `ringside ${page} ${form} ${input}`;

  // A browser may refuse to keep anything, as some do for files of a folder.
  function kept(key, value) {
    try {
      if (value === undefined) return localStorage.getItem(key) ?? "";
      if (value === "") localStorage.removeItem(key);
      else localStorage.setItem(key, value);
    } catch { /* then it is kept as long as the page is open */ }
    return "";
  }

  // What somebody types is what Python would read, with or without its quotes.
  function read(text) {
    const plain = text.trim().replace(/^(["'])(.*)\1$/, "$2");
    if (/^true$/i.test(plain)) return true;
    if (/^false$/i.test(plain)) return false;
    if (/^\[.*\]$/.test(plain) || /^[^,]+(,[^,]+)+$/.test(plain)) {
      const inside = plain.replace(/^\[|\]$/g, "").trim();
      return inside ? inside.split(",").map(read) : [];
    }
    const number = plain.replace(/(\d)[,_](?=\d{3}\b)/g, "$1");
    return plain !== "" && isFinite(number) ? Number(number) : plain;
  }

  function judged(bet, answer) {
    if (!bet && bet !== 0 && bet !== false) return "no bet yet";
    if (typeof bet !== "number" || typeof answer !== "number")
      return String(bet) === String(answer) ? "right" : "not so";
    if (Math.abs(bet - answer) <= Math.abs(answer) / 100) return "right";
    return bet > answer ? "too high" : "too low";
  }

  function compare(fold) {
    for (const row of fold.querySelectorAll("[data-bet]")) {
      const name = row.dataset.bet, [, mine, answer, told] = row.cells;
      const bet = document.querySelector(`.ringside-bets [name="${name}"]`)?.value.trim();
      mine.textContent = bet || "-";
      told.textContent = judged(bet && read(bet), read(answer.textContent));
    }
  }

  // ---- An exercise: the same table, and the same words, as in a notebook -------------

  // What somebody typed, as an answer of the kind that a field wants; or undefined.
  function fitting(text, kind) {
    const value = read(text.replace(/^(torch\.distributed|dist)\./, ""));
    if (Array.isArray(kind)) return kind.find(one => one === value);
    if (typeof kind === "object")
      return RegExp(`^(?:${kind.match})$`).test(value) ? value : undefined;
    if (kind === "list" || kind === "set") {
      const several = Array.isArray(value) ? value : [value];
      return several.every(Number.isInteger) ? several : undefined;
    }
    const number = typeof value === "number";
    if (kind === "int") return number && /^[+-]?[\d_,]+$/.test(text) ? value : undefined;
    if (kind === "float") return number ? value : undefined;
    if (kind === "bool") return typeof value === "boolean" ? value : undefined;
    return String(value);
  }

  const size = (answer, of) =>
    of === "len" ? answer.length : of === "max" ? Math.max(0, ...answer) : answer;

  function holds(where, answer) {
    if ("match" in where) return RegExp(where.match).test(answer);
    if ("outside" in where) {
      const [low, high] = where.outside, number = size(answer, where.of);
      return (low !== null && number < low) || (high !== null && number > high);
    }
    if ("within" in where) return Math.abs(answer - where.is) <= where.within;
    return JSON.stringify(answer) === JSON.stringify(where.is);
  }

  const ascending = several => [...several].sort((a, b) => a - b);
  const shown = value => Array.isArray(value) ? `[${value.join(", ")}]` : String(value);

  // Braces in what is said are filled as Python fills them: see filled() in check/table.py.
  function told(words, answers, answer) {
    const more = Array.isArray(answer)
      ? { list: answer, sorted: ascending(answer) } : {};
    const brace = /\{(\w*)(?:-(\d+))?(?:!(r)|:(g)|:\.(\d)f)?\}/g;
    return words.replace(brace, (_, name, less, quoted, short, places) => {
      let value = name ? { ...answers, ...more }[name] : answer;
      if (less) value -= Number(less);
      if (quoted && typeof value === "string") return `'${value}'`;
      if (short) return String(Number(value.toPrecision(6)));
      return places ? value.toFixed(places) : shown(value);
    });
  }

  // The first mistake, or nothing: as mistake() in check/table.py.
  function mistake(table, given) {
    const answers = {}, seen = {}, misfits = [];
    for (const { name, kind, types = table.types } of table.fields) {
      const answer = fitting(given[name], kind);
      if (answer === undefined && types) misfits.push(types);
      answers[name] = answer ?? read(given[name]);
      seen[name] = kind === "set" && answer ? ascending(answer) : answers[name];
    }
    if (misfits.length) return misfits.includes(table.types) ? table.types : misfits[0];
    for (const { if: which, says } of table.before)
      if (Object.entries(which).every(([name, where]) => holds(where, seen[name])))
        return told(says, answers);
    for (const { name, truth, wrongs, otherwise } of table.fields) {
      const answer = seen[name];
      if (holds(truth, answer)) continue;
      for (const row of wrongs)
        if (holds(row, answer)) return told(row.says, answers, size(answer, row.of));
      return told(otherwise, answers, answers[name]);
    }
  }

  function verdict(table, given) {
    const blank = Object.values(given).some(text => !text.trim() || text === "...");
    if (blank) return "your turn: fill in all fields";
    const found = mistake(table, given);
    return found ? `not yet: ${found}` : `right: ${table.right}`;
  }

  function check(form) {
    const given = Object.fromEntries(new FormData(form));
    const told = verdict(JSON.parse(form.dataset.table), given);
    form.querySelector("output").textContent = told;
  }

  // ---- The page ------------------------------------------------------------------------

  for (const form of document.querySelectorAll(".ringside-bets, .ringside-exercise")) {
    for (const input of form.querySelectorAll("input")) {
      const key = place(form.dataset.name ?? "bets", input.name);
      input.value = kept(key);
      input.addEventListener("input", () => kept(key, input.value));
    }
    form.addEventListener("submit", event => {
      event.preventDefault();
      if (form.matches(".ringside-exercise")) check(form);
    });
  }
  // ---- A picture for a whole class: full screen, and the keys of a presenter's remote --

  const pictures = ".ringside-player, .cell_output figure, .bd-article img[src$='.svg']";
  for (const picture of document.querySelectorAll(pictures)) {
    if (!document.fullscreenEnabled || picture.parentElement.closest(pictures)) continue;
    const button = document.createElement("button");
    button.type = "button";
    button.className = "ringside-full";
    button.textContent = "Full screen";
    button.addEventListener("click", async () => {
      await picture.requestFullscreen();
      screen.orientation?.lock?.("landscape").catch(() => {}); // a phone turns by itself
      picture.querySelector(".stage")?.focus();
    });
    picture.after(button);
  }
  document.addEventListener("keydown", event => {
    const way = { PageDown: 1, PageUp: -1 }[event.key];
    const slider = document.fullscreenElement?.querySelector("[type=range]");
    if (!way || !slider) return;
    event.preventDefault();
    slider.value = Number(slider.value) + way;
    slider.dispatchEvent(new Event("input", { bubbles: true }));
  }, { capture: true }); // a player keeps its keys to itself

  const typed = document.querySelectorAll(".ringside-bets, .ringside-exercise");
  if (typed.length) {
    const forget = document.createElement("button");
    forget.textContent = "Forget what I typed, on all pages";
    forget.addEventListener("click", () => {
      for (const form of typed) form.reset();
      try {
        for (const key of Object.keys(localStorage))
          if (key.startsWith("ringside ")) localStorage.removeItem(key);
      } catch { /* then nothing was kept */ }
    });
    const line = document.createElement("p");
    line.className = "ringside-forget";
    line.append(forget);
    document.querySelector("article").append(line);
  }
  for (const wide of document.querySelectorAll("figure"))  // to scroll it by keys
    if (wide.scrollWidth > wide.clientWidth) wide.tabIndex = 0;
  for (const fold of document.querySelectorAll(".ringside-compare"))
    fold.addEventListener("toggle", () => compare(fold));
})();
