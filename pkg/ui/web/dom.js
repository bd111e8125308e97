// h makes an element. Strings become text, never markup: names in a cluster are made by others.
export function h(tag, props = {}, ...children) {
  const element = document.createElement(tag);
  for (const [key, value] of Object.entries(props)) {
    if (value === undefined || value === null || value === false) continue;
    if (key === "class") element.className = value;
    else if (key === "data") Object.assign(element.dataset, value);
    else if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
    else element.setAttribute(key, value === true ? "" : value);
  }
  element.append(...children.flat().filter((child) => child !== undefined && child !== null && child !== false));
  return element;
}

// refill replaces the children of an element. The focus stays on the child with the same data-focus.
export function refill(element, ...children) {
  const focused = element.contains(document.activeElement) && document.activeElement.dataset.focus;
  element.replaceChildren(...children.filter(Boolean));
  if (focused) element.querySelector(`[data-focus="${CSS.escape(focused)}"]`)?.focus({ preventScroll: true });
}

export const byId = (id) => document.getElementById(id);

// setText changes the text of an element only if it differs, so that nothing is painted or announced again.
export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}
