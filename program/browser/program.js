/* program.js: the program in a worker, and its module out of this page. */

const element = id => document.getElementById(id);

class Program {
  constructor(module) {
    this.url = URL.createObjectURL(new Blob([element("worker").textContent], {type: "text/javascript"}));
    this.waiting = new Map(), this.id = 0, this.module = module;
    this.start();
  }

  start() {
    this.worker = new Worker(this.url);
    this.worker.postMessage({module: this.module});
    this.worker.onmessage = ({data}) => {
      const {resolve, told} = this.waiting.get(data.id);
      if (data.told !== undefined) return void told(data.told);
      this.waiting.delete(data.id);
      resolve(data);
    };
  }

  /* files: {path: bytes} that it can read. slice: {seconds, columns, told}, of a run that ends itself as if by Ctrl-C after so
   * long and whose output goes to told(text) as it comes, as on a terminal of so many columns. */
  run(words, files = state.files, {told, program = "memtape", ...slice} = {}) {
    return new Promise(resolve => {
      this.waiting.set(++this.id, {resolve, told});
      this.worker.postMessage({id: this.id, words: [program, ...words], files, ...slice});
    });
  }

  /* Drops what runs; its promises are never kept. */
  stop() {
    this.worker.terminate();
    this.waiting.clear();
    this.start();
  }
}

/* What this page has compressed, as a stream. */
function unzipped(id) {
  const text = atob(element(id).textContent), packed = new Uint8Array(text.length);
  for (let i = 0; i < text.length; i++) packed[i] = text.charCodeAt(i);
  return new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
}

const unpack = async () => WebAssembly.compile(await new Response(unzipped("module")).arrayBuffer());
