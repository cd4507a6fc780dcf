// Bets and answers on a page: compared, judged, kept in this browser, forgotten.
(() => {
  "use strict";
  // Of a file, a browser may not read what the search would show below a title.
  if (location.protocol === "file:" && typeof DOCUMENTATION_OPTIONS === "object")
    DOCUMENTATION_OPTIONS.SHOW_SEARCH_SUMMARY = false;

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

  function check(form) {
    const table = JSON.parse(form.dataset.table);
    const given = Object.fromEntries(new FormData(form));
    form.querySelector("output").textContent = verdict(table, given);
  }

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
  for (const fold of document.querySelectorAll(".ringside-compare"))
    fold.addEventListener("toggle", () => compare(fold));
})();
