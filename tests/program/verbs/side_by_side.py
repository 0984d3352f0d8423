"""Scripts that mostly wait run side by side: side_by_side.py SCRIPT... Prints what each printed, and fails if one does; skipped
(77) if all are."""
import os
import subprocess
import sys
import tempfile

started = []
for script in sys.argv[1:]:
    out = tempfile.TemporaryFile()
    started.append((script, out, subprocess.Popen([sys.executable, script], stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT)))
statuses = set()
for script, out, process in started:
    status = process.wait()
    statuses.add(status)
    out.seek(0)
    print(f"---- {os.path.basename(script)}: status {status}", flush=True)
    sys.stdout.buffer.write(out.read())
    sys.stdout.flush()
sys.exit(77 if statuses == {77} else int(not statuses <= {0, 77}))
