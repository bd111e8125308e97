// Sets the theme before the first paint, so it is not a module.
{
  const stored = () => { try { return localStorage.getItem("karve-theme"); } catch { return null; } };
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const apply = () => {
    document.documentElement.dataset.theme = stored() || (dark.matches ? "dark" : "light");
  };
  apply();
  dark.addEventListener("change", apply);
  addEventListener("storage", apply); // The other tabs follow.
}
