"use strict";
const stale = document.getElementById("stale");
let last = new Date();
async function refresh() {
  try {
    const answer = await fetch(location.href, {cache: "no-store", signal: AbortSignal.timeout(5000)});
    if (!answer.ok) throw new Error(`status ${answer.status}`);
    const next = new DOMParser().parseFromString(await answer.text(), "text/html");
    const open = new Set([...document.querySelectorAll("details[open]")].map((each) => each.id));
    for (const each of next.querySelectorAll("details")) each.open = open.has(each.id);
    document.querySelector("main").replaceWith(next.querySelector("main"));
    document.title = next.title;
    last = new Date();
    stale.hidden = true;
  } catch (error) {
    stale.textContent = `No answer since ${last.toLocaleTimeString()}: what is shown is old (${error.message}).`;
    stale.hidden = false;
  }
  setTimeout(refresh, document.hidden ? 10000 : 2000);
}
setTimeout(refresh, 2000);
