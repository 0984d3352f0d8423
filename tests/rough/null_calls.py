#!/usr/bin/env python3
"""Writes a C table of calls: every public function, with each of its pointers NULL in turn, and with the least, the
largest and odd values of each of its integers.

usage: null_calls.py HEADER... > null_calls.inc
The types of the other arguments decide their values, so a new function needs no line here."""
import re
import sys

# Objects that test_null.c has made. A NULL object stands for one that an earlier call failed to make.
OBJECTS = {
    'mt_tensor': 'x.t', 'mt_device': 'device', 'mt_module': 'x.module', 'mt_optimizer': 'x.optimizer',
    'mt_scaler': 'x.scaler', 'mt_ledger': 'x.ledger', 'mt_saved': 'x.saved', 'mt_offload': 'x.offload',
    'mt_compress': 'x.compress', 'mt_host_copy': 'x.host_copy', 'mt_arena': 'x.arena', 'mt_checkpoint_report': 'x.report',
    'mt_safetensors': 'NULL', 'mt_comm': 'NULL', 'mt_stage': 'NULL', 'mt_dlpack': 'NULL',
    'mt_kv_cache': 'NULL', 'mt_budget': 'NULL', 'mt_budget_plan': 'NULL',
    'mt_tokenizer': 'NULL', 'mt_token_stream': 'NULL',
}
SCALARS = {'double': '0.5', 'bool': 'false', 'mt_dtype': 'MT_F32', 'int': '1', 'int64_t': '1',
           'uint64_t': '1', 'size_t': '1'}
POINTERS = {'const mt_model_config *': '&x.config', 'const char *': '"x"', 'const int64_t *': '(const int64_t[8]){1, 1}',
            'const int *': '(const int[8]){0}', 'mt_tensor *const *': '(mt_tensor *[8]){x.t}',
            'const void *': '(const void *)&x', 'FILE *': 'stderr', 'char *': '(char[8]){0}'}
# What no caller means: of these the functions may make an error, nothing else.
EXTREMES = {'int': ['INT_MIN', '-1', '0', '1 << 30', 'INT_MAX'],
            'int64_t': ['INT64_MIN', '-1', '0', '(int64_t)1 << 62', 'INT64_MAX'],
            'uint64_t': ['0', '(uint64_t)1 << 63', 'UINT64_MAX'], 'size_t': ['0', '(size_t)1 << 63', 'SIZE_MAX']}
SPECIAL = {('mt_in', 't'): 'mt_retain(x.t)', ('mt_set', 'value'): 'mt_retain(x.t)', ('mt_module_add_param', 'param'): 'mt_retain(x.t)'}
BORROWED = {'mt_in', 'mt_grad', 'mt_module_param', 'mt_module_add_param'}
# These may be NULL: it means that the argument is left out.
OPTIONAL = {('mt_checkpoint_save', 'optimizer'), ('mt_layer_norm', 'w'), ('mt_layer_norm', 'b'),
            ('mt_batch_norm', 'w'), ('mt_batch_norm', 'b'),
            ('mt_next_logits', 'cache')}
# Not called: these accept NULL, or take ownership of the argument.
LEFT_OUT = {'mt_module_add_child', 'mt_module_swap_child', 'mt_retain', 'mt_device_retain',
            'mt_device_release', 'mt_release', 'mt_step_back_to_saved_hooks', 'mt_module_new', 'mt_model_open'}


def prototypes(path):
    text = re.sub(r'/\*.*?\*/', '', open(path).read(), flags=re.S)
    for declared in re.findall(r'MT_API\s+([^;{]+?);', text, flags=re.S):
        result, name, arguments = re.match(r'(.*?)(mt_\w+)\((.*)\)$', ' '.join(declared.split())).groups()
        yield result.strip(), name, split(arguments)


def split(arguments):
    """[(type, name)]; the type of a function pointer is 'function'."""
    parts, depth, start = [], 0, 0
    for i, c in enumerate(arguments + ','):
        depth += (c == '(') - (c == ')')
        if c == ',' and depth == 0:
            parts.append(arguments[start:i].strip())
            start = i + 1
    out = []
    for part in parts:
        function = re.search(r'\(\*(\w+)\)', part)
        if function:
            out.append(('function', function.group(1)))
        elif part != 'void':
            pointer = re.sub(r'(\w+)\[\w*\]$', r'*\1', part)  # which an array as a parameter is
            out.append(re.match(r'(.*?)(\w+)$', pointer).groups())
    return [(kind.strip(), name) for kind, name in out]


def base(kind):
    return re.sub(r'\bconst\b|\*', '', kind).strip()


def is_callback(kind):
    return kind == 'function' or kind.endswith('_fn')


def extremes(kind, name, parameters):
    """The values to try of an integer. An array has as many elements as its caller says, so these numbers are not tried."""
    arrays = any('*' in k and not is_object(k) and base(k) not in ('char', 'FILE') for k, _ in parameters)
    if '*' in kind or is_callback(kind) or name.startswith('n') and arrays:
        return []
    if kind.startswith('mt_'):
        return ['(%s)%s' % (kind, value) for value in ('-1', '99', 'INT_MAX')]
    return EXTREMES.get(kind, [])


def is_object(kind):
    return base(kind) in OBJECTS and kind.count('*') == 1


def good(function, kind, name, calls_back):
    if (function, name) in SPECIAL:
        return SPECIAL[function, name]
    if kind in POINTERS:
        return POINTERS[kind] if name != 'path' else '"/nowhere/memtape"'
    if name == 'user' or base(kind) == 'void':
        return 'NULL'
    if is_object(kind):
        return 'x.output' if calls_back and base(kind) == 'mt_tensor' else OBJECTS[base(kind)]
    if kind == 'function' or base(kind).endswith('_fn'):
        return 'NULL'
    if '*' not in kind:
        return SCALARS.get(kind, '(%s)0' % kind)
    if kind == 'mt_tensor **':
        return 'x.tensors'
    if kind.count('*') == 2:
        return '(void *)x.places'
    return '(%s[16]){0}' % kind.rstrip('* ')  # enough of them for an array, too


def call(result, name, arguments):
    text = '%s(%s)' % (name, ', '.join(arguments))
    if result == 'mt_status':
        return 'x.status = %s;' % text
    if result == 'mt_tensor *' and name not in BORROWED:
        return 'x.made = %s, x.makes = true;' % text
    if name.endswith('_new'):
        return '%s made = %s; x.makes = true, x.other = made; %s_free(made);' % (result, text, base(result))
    if name in ('mt_safetensors_open', 'mt_host_copy_out', 'mt_device_open'):
        return 'x.makes = true, x.other = %s;' % text
    return '(void)%s;' % text


for header in sys.argv[1:]:
    print('#include "memtape/%s"' % header.rsplit('/memtape/', 1)[-1])

rows = []
for header in sys.argv[1:]:
    for result, name, parameters in prototypes(header):
        if name in LEFT_OUT:
            continue
        calls_back = any(is_callback(kind) for kind, _ in parameters)
        values = [good(name, kind, argument, calls_back) for kind, argument in parameters]
        for n, i in enumerate(i for i, value in enumerate(values) if value == 'x.tensors'):
            values[i] = 'x.tensors + %d' % (4 * n)  # each makes tensors of its own
        tries = [(i, 'NULL') for i, (kind, argument) in enumerate(parameters)
                 if ('*' in kind or is_callback(kind)) and argument != 'user']
        tries += [(i, value) for i, (kind, argument) in enumerate(parameters) for value in extremes(kind, argument, parameters)]
        for i, value in tries:
            kind, argument = parameters[i]
            arguments = values[:i] + [value] + values[i + 1:]
            function = 'null_%d' % len(rows)
            print('static void %s(void)\n{\n    %s\n}\n' % (function, call(result, name, arguments)))
            # If an object is NULL, the error may only name the call that should have made it.
            chain = is_object(kind) or any(
                OBJECTS.get(base(k)) == 'NULL' and is_object(k) for k, _ in parameters)
            rows.append('    {"%s", "%s", "%s", %s, %s, %s},' % (
                name, argument, value, function, 'true' if chain and (name, argument) not in OPTIONAL else 'false',
                'true' if result == 'mt_status' else 'false'))
print('static const row rows[] = {\n%s\n};' % '\n'.join(rows))
