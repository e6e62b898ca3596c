// Keeps the page up to date: the server sends the whole content again, and only what differs is changed here. So the
// focus, what is selected, and what is folded out stay as they are.
"use strict";

(() => {
  const main = document.getElementById("main");
  const live = document.getElementById("live");
  if (!main || !main.dataset.stream) return;

  const keyOf = (node) => (node.nodeType === Node.ELEMENT_NODE ? node.getAttribute("data-key") : null);
  const alike = (a, b) => a.nodeType === b.nodeType && a.nodeName === b.nodeName && keyOf(a) === keyOf(b);

  function renew(old, fresh) {
    if (old.nodeType !== Node.ELEMENT_NODE) {
      if (old.data !== fresh.data) old.data = fresh.data;
      return;
    }
    for (const { name, value } of [...fresh.attributes]) {
      if (old.getAttribute(name) !== value) old.setAttribute(name, value);
    }
    for (const { name } of [...old.attributes]) {
      // Whether details are open is up to the reader.
      if (!fresh.hasAttribute(name) && !(name === "open" && old.nodeName === "DETAILS")) old.removeAttribute(name);
    }
    renewChildren(old, fresh);
  }

  function renewChildren(old, fresh) {
    const keyed = new Map();
    for (const child of old.childNodes) if (keyOf(child) !== null) keyed.set(keyOf(child), child);
    let at = old.firstChild;
    for (const child of [...fresh.childNodes]) {
      const key = keyOf(child);
      const same = key !== null ? keyed.get(key) : at && alike(at, child) ? at : null;
      if (same && alike(same, child)) {
        keyed.delete(key);
        if (same === at) at = at.nextSibling;
        else old.insertBefore(same, at);
        renew(same, child);
      } else {
        old.insertBefore(child, at);
      }
    }
    while (at) {
      const next = at.nextSibling;
      at.remove();
      at = next;
    }
  }

  function say(text, kind) {
    live.textContent = text;
    live.className = `chip live ${kind}`;
  }

  const source = new EventSource(main.dataset.stream);
  source.onopen = () => say("live", "on");
  source.onerror = () => say("not connected", "off");
  source.onmessage = (event) => {
    const parsed = new DOMParser().parseFromString(`<main>${JSON.parse(event.data)}</main>`, "text/html");
    renewChildren(main, document.importNode(parsed.querySelector("main"), true));
  };

  document.addEventListener("submit", (event) => {
    const { ask } = event.target.dataset;
    if (ask && !window.confirm(ask)) event.preventDefault();
  });
})();
