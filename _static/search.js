/* Marks, on the page that a search leads to, the words that were searched for. Sphinx's own script never gets to it:
   it keeps away from pages with the tools of search, which the theme loads on every page. It would also cut through
   formulas. The words travel in the address, which works for files and for any number of results that are opened. */
"use strict";

(function () {
  const PARAMETER = "found";
  const WORD = /[\p{Letter}\p{Mark}\p{Number}_]+/gu;
  const LEFT_ALONE = ".math, mjx-container, script, style, noscript, svg, button, select, .explore, .headerlink";

  /* The page of results: each link carries the query. */
  function carry(results) {
    const query = new URLSearchParams(location.search).get("q");
    if (!query) return;
    // a page of files may not read the others to quote from them
    if (location.protocol === "file:") DOCUMENTATION_OPTIONS.SHOW_SEARCH_SUMMARY = false;
    new MutationObserver(function () {
      results.querySelectorAll("a").forEach(function (link) {
        const address = new URL(link.href);
        address.searchParams.set(PARAMETER, query);
        link.href = address;
      });
    }).observe(results, { childList: true, subtree: true });
  }

  function plain(word) {
    return word.normalize("NFD").replace(/\p{Mark}/gu, "").toLowerCase();
  }

  /* Whether a word is one that the search looked for: by its stem, or as a part of a longer word. */
  function wanted(query) {
    const stemmer = new Stemmer();
    const terms = (query.match(WORD) || [])
      .filter(function (term) { return !stopwords.includes(term.toLowerCase()) && !/^\d+$/.test(term); })
      .map(plain);
    const stems = new Set(terms.map(function (term) { return stemmer.stemWord(term); }));
    const parts = terms.filter(function (term) { return term.length > 2; });
    return function (word) {
      const letters = plain(word);
      return stems.has(stemmer.stemWord(letters)) || parts.some(function (part) { return letters.includes(part); });
    };
  }

  function mark(article, isWanted) {
    const walker = document.createTreeWalker(article, NodeFilter.SHOW_TEXT);
    const texts = [];
    while (walker.nextNode()) {
      if (!walker.currentNode.parentElement.closest(LEFT_ALONE)) texts.push(walker.currentNode);
    }
    for (const text of texts) {
      // from the last word to the first: what is cut off behind a word moves none of those before it
      for (const found of Array.from(text.data.matchAll(WORD)).reverse()) {
        if (!isWanted(found[0])) continue;
        const word = text.splitText(found.index);
        word.splitText(found[0].length);
        const element = document.createElement("mark");
        word.replaceWith(element);
        element.append(word);
      }
    }
    return Array.from(article.querySelectorAll("mark"));
  }

  /* Opens the folds that hide a mark (its own title hides nothing); returns what closes them again. */
  function unfold(marks) {
    const undo = [];
    for (const element of marks) {
      const title = element.closest("summary, .admonition-title");
      for (let fold = element.parentElement; fold; fold = fold.parentElement) {
        if (title && title.parentElement === fold) continue;
        if (fold.matches("details:not([open])")) {
          const details = fold;
          details.open = true;
          undo.push(function () { details.open = false; });
        } else if (fold.matches(".toggle-hidden")) {
          const button = fold.querySelector(".toggle-button");
          button.click();
          undo.push(function () { if (button.getAttribute("aria-expanded") === "true") button.click(); });
        }
      }
    }
    return undo;
  }

  async function show(article, query) {
    const marks = mark(article, wanted(query));
    const undo = unfold(marks);
    const bar = document.createElement("div");
    const count = document.createElement("span");
    const button = document.createElement("button");
    bar.className = "search-marks d-print-none";
    count.setAttribute("role", "status");
    count.textContent = `“${query}”: ${marks.length || "no"} ${marks.length === 1 ? "match" : "matches"} in the text.`;
    button.type = "button";
    button.className = "btn btn-sm btn-outline-secondary";
    button.textContent = "Hide (Esc)";
    bar.append(count, button);
    article.prepend(bar);

    function hide() {
      marks.forEach(function (element) {
        const parent = element.parentNode;
        if (!parent) return;
        element.replaceWith(...element.childNodes);
        parent.normalize();
      });
      undo.forEach(function (close) { close(); });
      bar.remove();
      document.removeEventListener("keydown", hideByKey);
      const address = new URL(location.href);
      address.searchParams.delete(PARAMETER);
      history.replaceState(history.state, "", address);
    }
    function hideByKey(event) {
      if (event.key === "Escape" && !document.querySelector("dialog[open]")) hide();
    }
    button.addEventListener("click", hide);
    document.addEventListener("keydown", hideByKey);

    // typesetting moves everything; a fragment in the address, or a reader who scrolls, knows better where to go
    await window.MathJax?.startup?.promise;
    if (marks.length && !location.hash && !window.scrollY) marks[0].scrollIntoView({ block: "center" });
  }

  document.addEventListener("DOMContentLoaded", function () {
    const results = document.getElementById("search-results");
    if (results) carry(results);
  });
  // once everything is loaded: folds are made by scripts, too
  window.addEventListener("load", function () {
    const article = document.querySelector("article");
    const query = new URLSearchParams(location.search).get(PARAMETER);
    if (article && query) show(article, query);
  });
})();
