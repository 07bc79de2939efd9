"""What the end of each verb's --help shows: command lines that work as they stand."""

from collections.abc import Mapping, Sequence

EXAMPLES: Mapping[str, Sequence[str]] = {
    "chat": (
        "mtplx chat",
        "mtplx chat --model ./model.gguf --temp 0.7",
        "mtplx chat --resume",
        "mtplx chat < questions.txt",
    ),
    "generate": (
        'mtplx generate "Why is the sky blue?"',
        'mtplx generate "Summarise this:" < notes.txt',
        "mtplx generate --temp 0 --max-tokens 100 --json < prompt.txt",
        "mtplx generate --raw --stop '\\n\\n' \"def reverse(text):\"",
    ),
    "demo": ("mtplx demo", "mtplx demo --depth 3"),
    "bench": (
        "mtplx bench",
        "mtplx bench --depths off,1,2 --classes chat,code --rounds 5",
        "mtplx bench --temp 0.7 --json > bench.json",
    ),
    "tune": (
        "mtplx tune",
        "mtplx tune --budget 15m --contexts 1k,4k --chart speeds.svg",
        "mtplx tune --temp 0 --classes code --retune",
        "mtplx tune --dry-run",
    ),
    "profile": ("mtplx profile list", "mtplx profile show"),
    "profile list": ("mtplx profile list", "mtplx profile list --json"),
    "profile show": ("mtplx profile show", "mtplx profile show smollm2 --chart speeds.svg"),
    "profile export": (
        "mtplx profile export smollm2 smollm2.toml",
        "mtplx profile export > profile.toml",
    ),
    "profile import": ("mtplx profile import smollm2.toml",),
    "profile forget": ("mtplx profile forget smollm2", "mtplx profile forget --all"),
    "inspect": (
        "mtplx inspect smollm2",
        "mtplx inspect --no-load ./model.gguf",
        "mtplx inspect mlx-community/Qwen3-4B-4bit --json",
    ),
    "convert": (
        "mtplx convert Qwen/Qwen3.5-4B ./qwen3.5-4b-4bit --bits 4",
        "mtplx convert ./original ./converted --bits 4 --group-size 32 --head-bits 8",
        "mtplx convert ./original ./converted --dtype bfloat16",
    ),
    "doctor": ("mtplx doctor", "mtplx doctor --json"),
    "train-head": (
        "mtplx train-head smollm2",
        "mtplx train-head ./model.gguf --out head.safetensors",
    ),
    "models": ("mtplx models list", "mtplx models pull smollm2"),
    "models list": ("mtplx models list", "mtplx models list --json"),
    "models pull": (
        "mtplx models pull smollm2",
        "mtplx models pull mlx-community/Qwen3-4B-4bit",
        "mtplx models pull owner/name/model-Q8_0.gguf",
        "mtplx models pull owner/name@0123abc",
    ),
    "models rm": (
        "mtplx models rm mlx-community/Qwen3-4B-4bit",
        "mtplx models rm --yes smollm2",
    ),
    "models path": ("mtplx models path smollm2", 'ls -l "$(mtplx models path smollm2)"'),
    "config": ("mtplx config show --model smollm2", "mtplx config set temperature 0.5"),
    "config show": (
        "mtplx config show",
        "mtplx config show --model smollm2",
    ),
    "config set": (
        "mtplx config set model mlx-community/Qwen3-4B-4bit",
        "mtplx config set folders ~/models /Volumes/Models",
        "mtplx config set aliases.big mlx-community/Qwen3-8B-4bit",
        "mtplx config set --model big temperature 0.6",
        'mtplx config set --model big system "Answer briefly."',
        "mtplx config set presence_penalty -- -0.5",
    ),
    "config unset": (
        "mtplx config unset temperature",
        "mtplx config unset --model big system",
    ),
    "config path": ("mtplx config path", '"$EDITOR" "$(mtplx config path)"'),
}
EXIT_CODES: Mapping[int, str] = {
    0: "it worked",
    1: "something stood in the way; a line on standard error says what",
    2: "the command line or the settings file cannot be meant",
    130: "stopped with Ctrl-C",
    141: "whoever read the output has gone",
}


def epilog(verb: str) -> str:
    """The examples of a verb as the end of its help, not to be filled into lines."""
    return "\b\nExamples:\n" + "\n".join(f"  {line}" for line in EXAMPLES[verb])


def exit_code_epilog() -> str:
    """What the program's exit codes mean, as the end of its own help."""
    return "\b\nExit codes:\n" + "\n".join(
        f"  {code:<5}{text}" for code, text in EXIT_CODES.items()
    )
