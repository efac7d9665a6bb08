// Runs before the page is drawn, so that a chosen theme does not flash.
"use strict";
document.documentElement.classList.add("js");
try {
  const theme = localStorage.getItem("horsies-theme");
  if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
} catch {
  // Without storage the theme of the system is used.
}
