// Shows what a bar is at once, where a browser's own way takes its time.
const tip = document.getElementById("tip");
for (const title of document.querySelectorAll("svg g > title")) {
  title.parentNode.dataset.tip = title.textContent;
  title.remove();
}
document.addEventListener("mousemove", (event) => {
  const bar = event.target.closest("[data-tip]");
  tip.style.display = bar ? "block" : "none";
  if (!bar) return;
  tip.textContent = bar.dataset.tip;
  const right = event.clientX + 16 + tip.offsetWidth > innerWidth;
  tip.style.left = (right ? event.clientX - 12 - tip.offsetWidth : event.clientX + 14) + "px";
  const low = event.clientY + 16 + tip.offsetHeight > innerHeight;
  tip.style.top = (low ? event.clientY - 12 - tip.offsetHeight : event.clientY + 14) + "px";
});
