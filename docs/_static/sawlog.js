// What the theme leaves out for keyboards and screen readers.
addEventListener("DOMContentLoaded", () => {
  for (const caption of document.querySelectorAll('p.caption[role="heading"]')) caption.ariaLevel = "2";
  for (const block of document.querySelectorAll(".highlight pre, .table-wrapper")) {
    if (block.scrollWidth > block.clientWidth) block.tabIndex = 0;
  }
});
