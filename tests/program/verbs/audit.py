"""`memtape audit`, as text and as JSON, for one op and for all; an unknown op is refused."""
import json
from lib import check, done, equal, refused, run

p = run("audit", "--json", "-")
equal(p.returncode, 0, f"status: {p.stderr}")
j = json.loads(p.stdout)
equal(j["schema"], "memtape.audit/1", "the schema")
ops = {(o["op"], o["how"]): o for o in j["ops"]}
relu, = [o for o in j["ops"] if o["op"] == "relu"]
kept, = relu["sets"][0]["keeps"]
equal((kept["name"], kept["role"], kept["needed"], kept["bytes"]), ("y", "output", True, 32 * 64 * 4),
      "what relu keeps")
equal([(w["kind"], w["bytes"]) for w in kept["cheaper"]], [("bits", 32 * 64 // 8)],
      "the cheaper way to keep it")
linear, = [o for o in j["ops"] if o["op"] == "linear"]
equal({s["wants"]: [k["name"] for k in s["keeps"]] for s in linear["sets"]},
      {"dx": ["w"], "dw": ["x"], "dx dw": ["x", "w"], "db": [], "dx db": ["w"], "dw db": ["x"],
       "dx dw db": ["x", "w"]}, "what linear keeps for each set of gradients")
equal(relu["taken"], [{"name": "y", "kind": "bits", "before": 32 * 64 * 4, "bytes": 32 * 64 // 8,
                       "difference": 0}], "the cheaper way, measured")
for o in j["ops"]:
    for s in o["sets"]:
        equal(s["bytes"], sum(k["bytes"] for k in s["keeps"] if not k["parameter"]),
              f"bytes of {o['op']} for {s['wants']}")
        for k in s["keeps"]:
            equal(k["needed"], k["difference"] != 0, f"{o['op']} {k['name']}: needed or not")

text = run("audit").stdout
for name in {o["op"] for o in j["ops"]}:
    check(f"\n  {name}" in text, f"{name} is in the table")
check("NOT NEEDED" in text and "\x1b" not in text, "findings are marked; output to a file has no colour")
one = run("audit", "dropout").stdout
check("y = mask x" in one and "Cheaper ways" in one and "2,048 -> 16 bytes" in one, "one op in full")
check("taken and measured" in one, "the cheaper ways are measured")
check("relu" not in one, "no other op is printed")
refused(["OP", "nonsense", "relu", "flash_attention"], "audit", "nonsense")
refused(["OP is \"relu\" already"], "audit", "relu", "gelu")
refused(["option"], "audit", "--batch", "2")
done()
