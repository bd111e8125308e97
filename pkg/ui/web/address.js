// The address of the page: the token of the server, and what is filtered and opened.

const key = "karve-token";

// takeToken returns the token from the fragment of the address, or the one of this tab, and removes it from the address. A fragment is never sent to a server, so
// the token is in no log.
export function takeToken() {
  const found = new URLSearchParams(location.hash.slice(1)).get("token");
  if (found !== null) {
    remember(found);
    history.replaceState(null, "", location.pathname + location.search);
  }
  return sessionStorage.getItem(key) ?? "";
}

export const remember = (token) => sessionStorage.setItem(key, token);

// read returns what the address says of some names, with "" for what it does not say.
export function read(names) {
  const params = new URLSearchParams(location.search);
  return Object.fromEntries(names.map((name) => [name, params.get(name) ?? ""]));
}

// write changes the address, to the values of some names. Opening something is a step that the browser's back button undoes; filters are not.
export function write(names, state, step) {
  const params = new URLSearchParams();
  for (const name of names) if (state[name]) params.set(name, state[name]);
  const search = params.size ? "?" + params : "";
  if (search === location.search) return;
  history[step ? "pushState" : "replaceState"](null, "", location.pathname + search);
}
