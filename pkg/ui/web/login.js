// The form that asks for a token. The page of kubectl karve ui has one in its address, unless the address is an old one.
import { remember } from "./address.js";
import { byId, setText } from "./dom.js";

// login returns a function that asks for a token, and says why. Then it begins.
export function login(server, begin) {
  byId("login").addEventListener("submit", (event) => {
    event.preventDefault();
    remember(byId("token").value.trim());
    server.token = byId("token").value.trim();
    byId("token").value = "";
    byId("login").hidden = true;
    byId("app").hidden = false;
    begin();
  });
  return (why) => {
    byId("app").hidden = true;
    byId("login").hidden = false;
    setText(byId("login-why"), why || "The server wants a token.");
    byId("token").focus();
  };
}
