// Filters and sorting of tables, one switch for all code, copy buttons. Without it every page is still whole.
"use strict";

const ANY = { paper: "all papers", verdict: "all verdicts", evidence: "any evidence", whose: "claims and own questions" };

function sortable(table) {
  const body = table.tBodies[0];
  const value = (row, k) => row.cells[k].dataset.value ?? row.cells[k].textContent.trim();
  [...table.tHead.rows[0].cells].forEach((head, k) => {
    if (!head.textContent) return;
    head.classList.add("sorts");
    head.tabIndex = 0;
    const sort = () => {
      const up = head.getAttribute("aria-sort") !== "ascending";
      [...head.parentNode.cells].forEach((h) => h.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", up ? "ascending" : "descending");
      const number = (row) => (Number.isNaN(parseFloat(value(row, k))) ? -Infinity : parseFloat(value(row, k)));
      const compare = "number" in head.dataset ? (a, b) => number(a) - number(b) : (a, b) => value(a, k).localeCompare(value(b, k));
      body.append(...[...body.rows].sort((a, b) => (up ? compare(a, b) : compare(b, a))));
      table.dispatchEvent(new CustomEvent("sorted", { detail: { sort: k, down: up ? "" : 1 } }));
    };
    head.addEventListener("click", sort);
    head.addEventListener("keydown", (e) => e.key === "Enter" && sort());
  });
}

function filtered(bar, table) {
  const rows = [...table.tBodies[0].rows], state = new URLSearchParams(location.hash.includes("=") ? location.hash.slice(1) : "");
  const shown = document.getElementById("shown"), fields = {};
  const keep = () => history.replaceState(null, "", state.size ? `#${state}` : location.pathname);
  const set = (name, value) => (value === "" || value === undefined ? state.delete(name) : state.set(name, value));
  const matches = (row, without) =>
    ["paper", "verdict", "evidence", "whose"].every((f) => f === without || !state.get(f) || row.dataset[f] === state.get(f)) &&
    row.textContent.toLowerCase().includes((state.get("text") ?? "").toLowerCase());
  const apply = () => {
    for (const row of rows) row.hidden = !matches(row);
    shown.textContent = `${rows.filter((r) => !r.hidden).length} of ${rows.length} claims`;
    for (const [name, select] of Object.entries(fields))
      for (const option of select.options) {
        const count = rows.filter((r) => matches(r, name) && (!option.value || r.dataset[name] === option.value)).length;
        option.textContent = `${option.value || ANY[name]} (${count})`;
      }
  };
  for (const name of ["paper", "verdict", "evidence", "whose"]) {
    const select = (fields[name] = document.createElement("select"));
    select.setAttribute("aria-label", name);
    for (const value of ["", ...new Set(rows.map((r) => r.dataset[name]))]) select.add(new Option(value, value));
    select.value = state.get(name) ?? "";
    select.addEventListener("change", () => { set(name, select.value); keep(); apply(); });
    bar.append(select);
  }
  const text = Object.assign(document.createElement("input"), { type: "search", placeholder: "words in a claim", value: state.get("text") ?? "" });
  text.setAttribute("aria-label", "words in a claim");
  text.addEventListener("input", () => { set("text", text.value); keep(); apply(); });
  bar.append(text);
  bar.hidden = false;
  if (state.has("sort")) for (let n = 0; n <= (state.has("down") ? 1 : 0); n++) table.tHead.rows[0].cells[state.get("sort")]?.click();
  table.addEventListener("sorted", (e) => { for (const [k, v] of Object.entries(e.detail)) set(k, v); keep(); });
  apply();
}

function codeSwitch(place) {
  const folds = [...document.querySelectorAll("details.hide")];
  if (!folds.length) return;
  const button = Object.assign(document.createElement("button"), { type: "button", textContent: "Show all code" });
  button.addEventListener("click", () => {
    const open = button.textContent.startsWith("Show");
    for (const fold of folds) fold.open = open;
    button.textContent = open ? "Fold all code" : "Show all code";
  });
  place.prepend(button);
}

// The form under "Run this" writes the command.
function commandOf(form) {
  const pre = form.parentNode.querySelector("pre.command"), plain = pre.textContent, inputs = [...form.querySelectorAll("input")];
  const quoted = (text) => (/^[\w.,:=+-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`);
  form.addEventListener("input", () => {
    const changed = inputs.filter((i) => i.value !== i.defaultValue);
    pre.textContent = plain + changed.map((i) => (i.dataset.name === "scale" ? ` --scale ${quoted(i.value)}` : ` -p ${i.dataset.name} ${quoted(i.value)}`)).join("");
  });
}

// A table as a file.
function csvButton(table) {
  const button = Object.assign(document.createElement("button"), { type: "button", className: "csv", textContent: "CSV" });
  button.setAttribute("aria-label", "this table as CSV");
  button.addEventListener("click", () => {
    const cells = (row) => [...row.cells].map((c) => `"${c.textContent.trim().replaceAll('"', '""')}"`).join(",");
    const href = URL.createObjectURL(new Blob([[...table.rows].map(cells).join("\n") + "\n"], { type: "text/csv" }));
    Object.assign(document.createElement("a"), { href, download: `${document.title.split(" - ")[0]}.csv` }).click();
  });
  table.before(button);
}

// What scrolls sideways can be reached by keys.
function reachable() {
  for (const box of document.querySelectorAll("pre, article table, .cell_output, .headlines, .explorer, .table-wrapper, div.output, div.math, .run > table"))
    if (box.scrollWidth > box.clientWidth || box.scrollHeight > box.clientHeight) box.tabIndex = 0;
}

function copyButton(block) {
  const button = Object.assign(document.createElement("button"), { type: "button", className: "copy", textContent: "copy" });
  button.addEventListener("click", async () => {
    await navigator.clipboard.writeText(block.querySelector("pre").textContent);
    button.textContent = "copied";
  });
  block.append(button);
}

// Search finds pages; the explorer has the sentences.
function searchClaims(results) {
  const words = new URLSearchParams(location.search).get("q");
  if (!words) return;
  const link = Object.assign(document.createElement("a"), { href: `papers/claims.html#text=${encodeURIComponent(words)}`, textContent: `Claims with “${words}”` });
  const line = document.createElement("p");
  line.append(link);
  results.before(line);
}

function openTarget() {
  const target = location.hash.length > 1 && document.getElementById(decodeURIComponent(location.hash.slice(1)));
  if (target && target.tagName === "DETAILS") target.open = true;
}

addEventListener("hashchange", openTarget);
addEventListener("DOMContentLoaded", () => {
  openTarget();
  const results = document.getElementById("search-results");
  if (results) searchClaims(results);
  document.querySelectorAll(".explorer table").forEach(sortable);
  const bar = document.querySelector(".filters");
  if (bar) filtered(bar, document.querySelector(".explorer table"));
  document.querySelectorAll(".switch").forEach(codeSwitch);
  document.querySelectorAll("div.highlight").forEach(copyButton);
  document.querySelectorAll(".parameters").forEach(commandOf);
  document.querySelectorAll(".cell_output table").forEach(csvButton);
  reachable();
  addEventListener("resize", reachable);
  document.addEventListener("toggle", reachable, true);
  const tree = document.querySelector(".sidebar-scroll"), here = tree?.querySelector("li.current-page > a");
  if (here && tree.scrollHeight > tree.clientHeight) tree.scrollTop = here.offsetTop - tree.clientHeight / 2;
});
