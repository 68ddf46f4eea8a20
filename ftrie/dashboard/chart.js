// A Vega-Lite chart. The drawing code comes from this server (see chart.py), never from elsewhere. The chart is made
// once; later rows replace its data, so that a page that stays open for a day holds no more than one view a chart.
export default {
  template: `<div class="chart" style="display: block; width: 100%"></div>`,
  props: { spec: Object, rows: Array, library: String },
  async mounted() {
    await this.draw();
    this.scheme = window.matchMedia("(prefers-color-scheme: dark)");
    this.redraw = () => this.draw();
    this.scheme.addEventListener("change", this.redraw);
    this.observer = new MutationObserver(this.redraw);
    this.observer.observe(document.body, { attributeFilter: ["class"] });
  },
  beforeUnmount() {
    this.scheme?.removeEventListener("change", this.redraw);
    this.observer?.disconnect();
    this.drawn?.finalize();
  },
  methods: {
    async draw() {
      const dark = document.body.classList.contains("body--dark");
      const drawing = JSON.stringify([this.spec, dark]);
      if (drawing === this.drawing) return;
      this.drawing = drawing;
      await import(this.library);
      const spec = plain(this.spec.light);
      if (dark) spec.config = plain(this.spec.dark);
      spec.datasets = { rows: plain(this.rows) };
      const drawn = await window.vegaEmbed(this.$el, spec, {
        actions: false,
        renderer: "svg",
        logLevel: 1, // errors only
        tooltip: { theme: dark ? "dark" : "light" },
      });
      this.drawn?.finalize();
      this.drawn = drawn;
      await this.fit();
      drawn.view.addEventListener("click", (event, item) => {
        if (item?.datum) this.$emit("pick", item.datum);
      });
    },
    async update_chart() {
      await this.draw();
      if (!this.drawn) return;
      await this.drawn.view.data("rows", plain(this.rows)).runAsync();
      await this.fit();
    },
    // Once more: the rows of the legend follow from the width of the plot, which is known only now.
    async fit() {
      await this.drawn.view.resize().runAsync();
    },
  },
};

// Vue's proxies make Vega slow.
function plain(value) {
  return JSON.parse(JSON.stringify(value));
}
