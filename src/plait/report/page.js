// Figures take their text and grid colours from the page, so that they follow the reader's light or dark scheme.
(function () {
  const scheme = window.matchMedia("(prefers-color-scheme: dark)");
  function colours() {
    const style = getComputedStyle(document.documentElement);
    const text = style.getPropertyValue("--text").trim();
    const grid = style.getPropertyValue("--grid").trim();
    const panel = style.getPropertyValue("--panel").trim();
    document.querySelectorAll(".js-plotly-plot").forEach((plot) => {
      const change = { "font.color": text, "hoverlabel.bgcolor": panel, "hoverlabel.font.color": text };
      Object.keys(plot._fullLayout)
        .filter((key) => /^[xy]axis\d*$/.test(key))
        .forEach((key) => { change[key + ".gridcolor"] = grid; change[key + ".linecolor"] = grid; });
      Plotly.relayout(plot, change);
    });
  }
  window.addEventListener("load", colours);
  scheme.addEventListener("change", colours);
})();
