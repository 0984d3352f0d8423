/* worker.js: runs the program, a new instance of the module each time. What it writes is collected by path. */

/* One memory for all instances: pages that the system has to make anew take as long as a run. */
const MOST = 2 ** 28;
let module = null, memory = null;
function clearMemory() {
  if (memory && memory.buffer.byteLength < MOST) new Uint8Array(memory.buffer).fill(0);
  else memory = new WebAssembly.Memory({initial: 64});
}

/* files: {path: bytes} that the program can read. */
function run(words, files) {
  const opened = [null, "/dev/stdout", "/dev/stderr"], read = new Map(), written = {};
  const bytes = (at, n) => new Uint8Array(memory.buffer, at >>> 0, n);
  const text = (at, n) => new TextDecoder().decode(bytes(at, n));
  const page = {
    now: () => performance.now(),
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
  clearMemory();
  const instance = new WebAssembly.Instance(module, {page, env: {memory}});
  let status = 0;
  try {
    status = instance.exports.run();
  } catch (error) {
    if (!(error instanceof Exit)) throw error;
    status = error.status;
  }
  const textOf = name => {
    const decoder = new TextDecoder(), parts = written["/dev/" + name] || [];
    return parts.map(part => decoder.decode(part, {stream: true})).join("") + decoder.decode();
  };
  return {status, out: textOf("stdout"), err: textOf("stderr"), html: textOf("html"), json: textOf("json")};
}

class Exit {
  constructor(status) { this.status = status; }
}

onmessage = ({data}) => {
  if (data.module) return void ({module} = data);
  let result = null;
  try {
    result = run(data.words, data.files);
  } catch (error) {
    result = {status: 1, out: "", err: "the program stopped: " + error.message};
  }
  postMessage({...result, id: data.id});
};
