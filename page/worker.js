/* worker.js: runs the program, a new instance of the module each time. What it writes is collected by path. */

let module = null;
const now = () => performance.now();

/* files: {path: bytes} that the program can read. */
function run(words, files) {
  const opened = [null, "/dev/stdout", "/dev/stderr"], read = new Map(), written = {};
  let instance = null;
  const bytes = (at, n) => new Uint8Array(instance.exports.memory.buffer, at >>> 0, n);
  const text = (at, n) => new TextDecoder().decode(bytes(at, n));
  const page = {
    now,
    args(at, most) {
      const all = new TextEncoder().encode(words.map(word => word + "\0").join(""));
      if (all.length > most) return -1;
      bytes(at, all.length).set(all);
      return all.length;
    },
    size: (path, n) => text(path, n) in files ? files[text(path, n)].length : -1,
    open: (path, n, writes) => writes || text(path, n) in files ? opened.push(text(path, n)) - 1 : -1,
    read(fd, at, n) {
      const file = files[opened[fd]], from = read.get(fd) || 0;
      if (!file) return -1;
      const part = file.subarray(from, from + n);
      bytes(at, part.length).set(part);
      read.set(fd, from + part.length);
      return part.length;
    },
    write(fd, at, n) {
      if (!opened[fd]) return -1;
      (written[opened[fd]] ||= []).push(bytes(at, n).slice());
      return n;
    },
    exit: status => { throw new Exit(status); },
  };
  instance = new WebAssembly.Instance(module, {page});
  let status = 0;
  try {
    status = instance.exports.run();
  } catch (error) {
    if (!(error instanceof Exit)) throw error;
    status = error.status;
  }
  const joined = name => new Blob(written[name] || []).arrayBuffer().then(all => new TextDecoder().decode(all));
  return Promise.all(["/dev/stdout", "/dev/stderr", "/dev/html"].map(joined))
    .then(([out, err, html]) => ({status, out, err, html}));
}

class Exit {
  constructor(status) { this.status = status; }
}

onmessage = async ({data}) => {
  if (data.module) return void ({module} = data);
  const start = now();
  let result = null;
  try {
    result = await run(data.words, data.files);
  } catch (error) {
    result = {status: 1, out: "", err: "the program stopped: " + error.message, html: ""};
  }
  postMessage({...result, id: data.id, ms: now() - start});
};
