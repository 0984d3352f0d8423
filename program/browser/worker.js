/* worker.js: runs the program, a new instance of the module each time. What it writes is collected by path. */

/* One memory for all instances: pages that the system has to make anew take as long as a run. */
const MOST = 2 ** 28;
let module = null, memory = null;
function clearMemory() {
  if (memory && memory.buffer.byteLength < MOST) new Uint8Array(memory.buffer).fill(0);
  else memory = new WebAssembly.Memory({initial: 64});
}

/* files: {path: bytes} that the program can read. seconds: of training, after which it is interrupted; columns: of a terminal, if it has
 * one; tell: takes what it prints, as it comes. */
function run({words, files, seconds = Infinity, columns = 0}, tell) {
  const opened = [null, "/dev/stdout", "/dev/stderr"], read = new Map(), written = {};
  const bytes = (at, n) => new Uint8Array(memory.buffer, at >>> 0, n);
  const text = (at, n) => new TextDecoder().decode(bytes(at, n));
  const live = new TextDecoder();
  let end = 0, interrupted = false;
  const page = {
    now: () => performance.now(),
    columns: () => columns,
    /* Setting up does not count, so that each run makes a step. */
    interrupted() {
      const now = performance.now();
      end ||= now + 1000 * seconds;
      return !interrupted && now > end && (interrupted = true);
    },
    args(at, most) {
      const all = new TextEncoder().encode(words.map(word => word + "\0").join(""));
      if (all.length > most) throw new Error(`a command line of more than ${most} bytes`);
      bytes(at, all.length).set(all);
      return all.length;
    },
    size: (path, n) => text(path, n) in files ? files[text(path, n)].length : -1,
    length: fd => opened[fd] in files ? files[opened[fd]].length : -1,
    seek: (fd, to) => { read.set(fd, to); },
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
      if (columns && fd === 1) tell(live.decode(bytes(at, n), {stream: true}));
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
  return {status, out: textOf("stdout"), err: textOf("stderr"), html: textOf("html"), json: textOf("json"),
    saved: joined(written["/dev/saved"] || [])};
}

function joined(parts) {
  const all = new Uint8Array(parts.reduce((n, part) => n + part.length, 0));
  parts.reduce((at, part) => (all.set(part, at), at + part.length), 0);
  return all;
}

class Exit {
  constructor(status) { this.status = status; }
}

onmessage = ({data}) => {
  if (data.module) return void ({module} = data);
  let result = null;
  try {
    result = run(data, told => postMessage({id: data.id, told}));
  } catch (error) {
    result = {status: 1, out: "", err: "the program stopped: " + error.message};
  }
  postMessage({...result, id: data.id});
};
