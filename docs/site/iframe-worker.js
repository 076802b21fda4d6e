// The search runs in a Worker, and browsers refuse one to a page that was opened as a file. There a hidden frame
// runs the script. The plugin `offline` takes a file of this name in place of one from the network.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.body.append(frame);
      const inner = frame.contentWindow;
      inner.document.open();
      inner.document.write("<body><script>postMessage = (data) => parent.postMessage(data, '*');</script>");
      inner.document.write(`<script src="${url}"></script>`);
      inner.document.close();
      this.ready = new Promise((resolve) => { inner.onload = () => resolve(inner); });
      window.addEventListener("message", (event) => {
        if (event.source === inner) this.dispatchEvent(new MessageEvent("message", { data: event.data }));
      });
    }

    async postMessage(data) {
      (await this.ready).dispatchEvent(new MessageEvent("message", { data }));
    }
  };
}
