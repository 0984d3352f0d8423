"""of_jax.py: the GPT's step in JAX: one jitted function of loss, gradients and AdamW whose parameters and moments are
donated, so that the new ones take the place of the old ones."""

import loop


def build(shape):
    import jax
    import jax.numpy as jnp

    def norm(p, name, x):
        mean = x.mean(-1, keepdims=True)
        return (x - mean) * jax.lax.rsqrt(x.var(-1, keepdims=True) + 1e-5) * p[name + ".w"] + p[name + ".b"]

    def linear(p, name, x):
        return x @ p[name + ".w"].T + p[name + ".b"]

    def block(p, i, x):
        b, s, d = x.shape
        qkv = linear(p, f"{i}.qkv", norm(p, f"{i}.ln_1", x))
        q, k, v = (t.reshape(b, s, shape.heads, d // shape.heads) for t in jnp.split(qkv, 3, -1))
        y = jax.nn.dot_product_attention(q, k, v, is_causal=True)
        x = x + linear(p, f"{i}.proj", y.reshape(b, s, d))
        wide = jax.nn.gelu(linear(p, f"{i}.fc", norm(p, f"{i}.ln_2", x)), approximate=shape.is_tanh)
        return x + linear(p, f"{i}.out", wide)

    def loss_of(p, tokens, targets):
        x = p["wte"][tokens] + p["wpe"][:shape.seq]
        for i in range(shape.layers):
            x = block(p, i, x)
        logits = norm(p, "ln_f", x) @ p["wte"].T
        return -jnp.take_along_axis(jax.nn.log_softmax(logits), targets[..., None], -1).mean()

    def adamw(p, g, m, v, t):
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
        step = (m / (1 - 0.9 ** t)) / (jnp.sqrt(v / (1 - 0.999 ** t)) + 1e-8)
        return p * (1 - 1e-3 * 0.01) - 1e-3 * step, m, v

    def step_of(state, t, tokens, targets):
        p, m, v = state
        loss, g = jax.value_and_grad(loss_of)(p, tokens, targets)
        new = {name: adamw(p[name], g[name], m[name], v[name], t) for name in p}
        return loss, tuple({name: three[i] for name, three in new.items()} for i in range(3))

    key = jax.random.key(1)
    parameters = {}
    for name, extents, value in shape.parameters():
        key, mine = jax.random.split(key)
        parameters[name] = (0.02 * jax.random.normal(mine, extents) if value is None
                            else jnp.full(extents, value))
    state = [(parameters, *({name: jnp.zeros_like(x) for name, x in parameters.items()} for _ in range(2)))]
    tokens, targets = (jnp.array(rows) for rows in shape.tokens)
    run = jax.jit(step_of, donate_argnums=0).lower(state[0], 1.0, tokens, targets).compile()
    t = 0

    def step():
        nonlocal t
        t += 1
        loss, state[0] = run(state[0], float(t), tokens, targets)
        jax.block_until_ready(state[0])
        return float(loss)

    said = run.memory_analysis()
    # Outputs that take the place of arguments (aliases) are counted once.
    peak = (said.argument_size_in_bytes + said.output_size_in_bytes - said.alias_size_in_bytes
            + said.temp_size_in_bytes)
    return step, {"analysis": peak}


if __name__ == "__main__":
    import importlib.metadata
    loop.serve(importlib.metadata.version("jax"), build)
