"""The commands of this package, one row each.

Owns: their names and their lines in `core --help`. Never does: import their implementation. Called by: discovery,
through entry points.
"""

from __future__ import annotations

from typing import Final

from core.commands.declared import DeclaredCommand

SERVE: Final = DeclaredCommand(
    "serve", "core_commands.cli.serve:serve", ("[MODEL]", "Start the server; without MODEL the embedded one.")
)
CHAT: Final = DeclaredCommand(
    "chat",
    "core_commands.cli.chat:chat",
    ("[MODEL]", "Talk to a model in the terminal: to the running server's, or one of its own."),
    options=("core_commands.cli.chat:ChatOptions",),
)
COMPLETE: Final = DeclaredCommand(
    "complete",
    "core_commands.cli.chat:complete",
    ("[MODEL]", "Have a model continue texts, in the same way."),
    options=("core_commands.cli.chat:CompleteOptions",),
)
RUN_BATCH: Final = DeclaredCommand(
    "run-batch",
    "core_commands.cli.run_batch:run_batch",
    ("-i IN -o OUT", "Run every request of a batch file; goes on where it was interrupted."),
    options=("core_commands.cli.run_batch:RunBatchOptions",),
)
VERIFY: Final = DeclaredCommand(
    "verify",
    "core_commands.cli.verify:verify",
    ("RECEIPT --request BODY", "Compute an answer again and compare it with its receipt, to the bit."),
    options=("core_commands.cli.verify:VerifyOptions",),
)
DIFF: Final = DeclaredCommand(
    "diff",
    "core_commands.cli.diff:diff",
    ("RECORDS --right ARGUMENTS", "Answer recorded requests again and show where another engine goes another way."),
    options=("core_commands.cli.diff:DiffOptions",),
)
BENCH: Final = DeclaredCommand(
    "bench",
    "core_commands.cli.bench:bench",
    ("serve|latency|throughput|startup|sweep|card|plot", "Measure a server, or an engine in this process."),
    options=(
        "core_commands.bench.serve_options:ServeOptions",
        "core_commands.bench.offline_options:LatencyOptions",
        "core_commands.bench.offline_options:ThroughputOptions",
        "core_commands.bench.offline_options:StartupOptions",
        "core_commands.bench.sweep_options:SweepOptions",
        "core_commands.bench.sweep_options:PlotOptions",
        "core_commands.card.options:CardOptions",
    ),
)
TUNE: Final = DeclaredCommand(
    "tune",
    "core_commands.tune.command:tune",
    ("[MODEL] --goal ttft:500,itl:50", "Try which arguments help this model and load on this machine."),
    options=("core_commands.tune.options:TuneOptions",),
)
COLLECT_ENV: Final = DeclaredCommand(
    "collect-env",
    "core_commands.cli.collect_env:collect_env",
    ("", "Versions, processor, memory, GPUs and plugins, for a report about a problem."),
)
MODELS: Final = DeclaredCommand(
    "models",
    "core_commands.cli.models:models",
    ("", "Every model family that can be served."),
    ("explain PATH", "One checkpoint: what is read, what is ignored and why, what is refused."),
)
PLUGINS_SHOW: Final = DeclaredCommand(
    "plugins.show",
    "core_commands.cli.plugins:plugins_show",
    ("NAME", "One plugin: what it is, what it takes, why it is broken."),
)
PLUGINS_EXPLAIN: Final = DeclaredCommand(
    "plugins.explain",
    "core_commands.cli.plugins:plugins_explain",
    ("[MODEL]", "What `serve` would use, and why: arguments, plugins, memory."),
)
PLUGINS_CHECK: Final = DeclaredCommand(
    "plugins.check", "core_commands.cli.plugin.check:check", ("NAME", "Try whether a plugin keeps its promises.")
)
PLUGINS_NEW: Final = DeclaredCommand(
    "plugins.new",
    "core_commands.cli.plugin.new:new",
    ("KIND NAME", "Write a package with a new plugin, which works as written."),
)
PLUGINS_DOCTOR: Final = DeclaredCommand(
    "plugins.doctor",
    "core_commands.cli.plugin.doctor:doctor",
    ("[MODEL]", "Find the changed plugin that changed the answers, or the pace, since an earlier start."),
    options=("core_commands.cli.plugin.doctor:DoctorOptions",),
)
CONFIG_SCHEMA: Final = DeclaredCommand(
    "config.schema", "core_commands.cli.config_schema:config_schema", ("", "JSON Schema of all arguments.")
)
CONFIG_EXPLAIN: Final = DeclaredCommand(
    "config.explain",
    "core_commands.cli.config:config_explain",
    ("[MODEL]", "Every value with its origin and reason, plugins, and the memory plan."),
)
CONFIG_SHOW: Final = DeclaredCommand(
    "config.show", "core_commands.cli.config:config_show", ("[MODEL]", "The configuration as YAML, for --config.")
)
KV_AUDIT: Final = DeclaredCommand(
    "kv.audit",
    "core_commands.cli.kv:kv_audit",
    ("LOG [MODEL]", "Which turns of logged chats compute earlier tokens again, and why. Needs no weights."),
    options=("core_commands.cli.kv:AuditOptions",),
)
NODES_ANSWER: Final = DeclaredCommand(
    "nodes.answer",
    "core_commands.cli.nodes:nodes_answer",
    ("[MODEL]", "Let other machines check this one before a group of engines uses them."),
    options=("core_commands.cli.nodes:AnswerOptions",),
)
NODES_CHECK: Final = DeclaredCommand(
    "nodes.check",
    "core_commands.cli.nodes:nodes_check",
    ("HOST...", "Check every pair of machines: route, port, key, delay, bandwidth, versions, weights."),
    options=("core_commands.cli.nodes:CheckOptions",),
)
SCALE: Final = DeclaredCommand(
    "scale",
    "core_commands.cli.scale:scale",
    ("URL N", "Have a running server use N engines, while its requests go on."),
    options=("core_commands.cli.scale:ScaleOptions",),
)
KV_CHECK: Final = DeclaredCommand(
    "kv.check",
    "core_commands.cli.kv:kv_check",
    ("HOST:PORT HOST:PORT", "Try whether two engines can hand on KV pages."),
    options=("core_commands.cli.kv:CheckOptions",),
)
KV_LIST: Final = DeclaredCommand("kv.list", "core_commands.cli.kv:kv_list", ("DIR", "List the KV pages on disk."))
KV_VERIFY: Final = DeclaredCommand(
    "kv.verify", "core_commands.cli.kv:kv_verify", ("DIR", "Read every KV page on disk and check it.")
)
KV_CLEAR: Final = DeclaredCommand("kv.clear", "core_commands.cli.kv:kv_clear", ("DIR", "Delete the KV pages on disk."))
CONVERT: Final = DeclaredCommand(
    "convert",
    "core_commands.cli.convert:convert",
    ("MODEL OUT", "Write a model's kernels to files that start without packing."),
)
SAVE_SHARDED: Final = DeclaredCommand(
    "save-sharded",
    "core_commands.cli.save_sharded:save_sharded",
    ("MODEL OUT", "Write a model's tensors to files for --load-format sharded_state."),
)
BUILD_KERNELS: Final = DeclaredCommand(
    "build-kernels", "core_commands.cli.build_kernels:build_kernels", ("", "Compile native kernels again.")
)
KERNELS: Final = DeclaredCommand(
    "kernels",
    "core_commands.cli.kernels:kernels",
    ("build [MODEL]", "Compile the kernels for GPUs ahead, so that a start waits for no compiler."),
    ("tune MODEL", "Measure how a model's products are computed best on a GPU; prints lines for a table."),
    options=("core_commands.cli.kernels:KernelsOptions",),
)
DASHBOARD: Final = DeclaredCommand(
    "dashboard",
    "core_commands.cli.dashboard:dashboard",
    ("", "Print a Grafana dashboard for the server's metrics (--perses: for Perses)."),
)
COMPLETION: Final = DeclaredCommand(
    "completion",
    "core_commands.cli.completion:completion",
    ("bash|zsh|fish", "Print a script that completes commands, flags and plugin names."),
)
