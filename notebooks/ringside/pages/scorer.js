// The order of what a search finds: answers to questions and messages, pages, scripts.
var Scorer = {
  score: ([docname, , , , score]) =>
    /^notebooks\/(questions|catalogue)$/.test(docname) ? score + 20
      : docname.startsWith("scripts/") ? score - 20 : score,
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: { 0: 15, 1: 5, 2: -5 },
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
};
