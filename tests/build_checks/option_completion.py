"""The generated parts of the shell completions (option_pages.py): the options of each command, and what their values can be.

Options of other launchers are not offered. It matters that some take a value, which is not the worker.
"""
import re
import textwrap

# Placeholders that say what a value is, unless the table of options says more.
SOURCES = {"FILE": "file", "DIR": "directory"}


def value_of(option):
    """Returns (source, words): what completes the value besides the words. The source of any other value is "any"."""
    parts = option["value"].strip("[]").split("|")
    words = option["words"] or [part for part in parts if re.fullmatch(r"[a-z0-9][\w.-]*|-", part)]
    found = [SOURCES[part] for part in parts if part in SOURCES]
    source = option["completion"] if option["completion"] != "nothing" else found[0] if found else "any"
    return "file" if source == "hostfile" else source, words


def described(option):
    """The help without the page that says more."""
    return re.sub(r" \(docs/users/[^)]*\)|[,;] docs/users/[\w.]+\.md", "", option["help"])


def is_optional(option):
    return option["value"].startswith("[")


def named(groups):
    """The options, without positional words."""
    return [option for group in groups for option in group["options"] if option["names"][0].startswith("-")]


def positional_words(groups):
    """The words that may stand for a positional argument."""
    return [word for group in groups for option in group["options"] if not option["names"][0].startswith("-") for word in value_of(option)[1]]


def other_names_of(command, option, others):
    """Names of other launchers for an option of ddplaunch."""
    return [name for name, target in others.items() if command == "ddplaunch" and target in option["names"]]


def other_names_without_option(command, others):
    return [name for name, target in others.items() if command == "ddplaunch" and not target]


def quoted(text):
    return "'" + text.replace("'", "'\\''") + "'"


def wrapped(text, indent):
    return textwrap.wrap(text, 130, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def continued(lines):
    """One command of a shell on several lines."""
    return [line + " \\" for line in lines[:-1]] + lines[-1:]


# --- bash -----------------------------------------------------------------------------------------------------------

def bash_case(command, names, facts):
    # textwrap breaks no line at "~".
    lines = wrapped("    " + " | ".join(f"'{command} {name}'".replace(" ", "~") for name in names) + ")", "      ")
    lines[-1] += f" {' '.join(facts)} ;;"
    return continued([line.replace("~", " ") for line in lines])


def bash_table(commands, others):
    lines = ["_ddplaunch_table() {", "  source='' words='' optional='' repeats=''", '  case "$1 $2" in']
    for command, groups in commands.items():
        names = [name for option in named(groups) for name in option["names"]]
        lines.append(f"    {quoted(command + ' options')})")
        lines += wrapped("      words=" + quoted(" ".join(names)), "        ")
        lines.append("      ;;")
        positional = positional_words(groups)
        if positional:
            lines.append(f"    {quoted(command + ' positional')}) words={quoted(' '.join(positional))} ;;")
        for option in named(groups):
            facts = []
            if option["value"]:
                source, words = value_of(option)
                facts.append(f"source='{source}'")
                if words:
                    facts.append(f"words={quoted(' '.join(words))}")
                if is_optional(option):
                    facts.append("optional=yes")
            if option["repeats"]:
                facts.append("repeats=yes")
            if facts:
                lines += bash_case(command, option["names"] + other_names_of(command, option, others), facts)
        if names := other_names_without_option(command, others):
            lines += bash_case(command, names, ["source='any'"])
    return [*lines, "  esac", "}"]


# --- zsh ------------------------------------------------------------------------------------------------------------

ZSH_ACTIONS = {"file": "_files", "directory": "_files -/", "program": "_command_names -e", "job_id": "_ddplaunch_jobs",
               "rank": "_ddplaunch_ranks", "host": "_ddplaunch_hosts", "any": " "}


def zsh_action(option):
    source, words = value_of(option)
    if not words:
        return ZSH_ACTIONS[source]
    if source == "any":
        return f"({' '.join(words)})"
    # A colon of an action is escaped, since _arguments divides its specifications at colons.
    return rf'_alternative "words\:word\:({" ".join(words)})" "values\:{option["value"]}\:{ZSH_ACTIONS[source]}"'


def zsh_specs(command, option, others):
    names = option["names"]
    excluded = "*" if option["repeats"] else f"({' '.join(names)})" if len(names) > 1 else ""
    text = described(option).replace("\\", "\\\\").replace("[", "\\[").replace("]", "\\]")
    for name in names:
        spec = excluded + name
        if option["value"]:
            separator = "::" if is_optional(option) else ":"
            value = f"{separator}{option['value'].replace(':', chr(92) + ':')}:{zsh_action(option)}"
            spec += ("=" if name.startswith("--") else "+") + f"[{text}]" + value
        else:
            spec += f"[{text}]"
        yield quoted(spec)
    for name in other_names_of(command, option, others):
        yield quoted(f"!{name}{'=' if name.startswith('--') else ''}{value}")


def zsh_table(commands, others):
    lines = ["_ddplaunch_table() {", "  case $1 in"]
    for command, groups in commands.items():
        lines += [f"    {quoted(command)})", f"      positional=({' '.join(positional_words(groups))})", "      options=("]
        lines += ["        " + spec for option in named(groups) for spec in zsh_specs(command, option, others)]
        lines += ["        " + quoted(f"!{name}=:value: ") for name in other_names_without_option(command, others)]
        lines += ["      ) ;;"]
    return [*lines, "  esac", "}"]


# --- fish -----------------------------------------------------------------------------------------------------------

FISH_CALLS = {"program": "(__fish_complete_command)", "job_id": "(__ddplaunch_jobs)", "rank": "(__ddplaunch_ranks)",
              "host": "(__ddplaunch_hosts)", "directory": "(__fish_complete_directories)"}


def fish_line(command, option):
    parts = ["complete", "-c", "ddplaunchd" if command == "ddplaunchd" else "ddplaunch", "-n", quoted(f"__ddplaunch_is {command}")]
    for name in option["names"]:
        parts += ["-l", name[2:]] if name.startswith("--") else ["-s", name[1:]]
    if option["value"]:
        source, words = value_of(option)
        if not is_optional(option):
            parts.append("-r")
        parts.append("-F" if source == "file" else "-f")
        words = [*words, *([FISH_CALLS[source]] if source in FISH_CALLS else [])]
        if words:
            parts += ["-a", quoted(" ".join(words))]
    return " ".join([*parts, "-d", quoted(described(option)).replace("'\\''", "\\'")])


def fish_table(commands, others):
    lines = ["function __ddplaunch_takes_value", "    set -l names", '    switch "$argv[1]"']
    for command, groups in commands.items():
        names = [name for option in named(groups) for name in option["names"] if option["value"] and not is_optional(option)]
        names += [name for name in others if command == "ddplaunch"]
        lines += [f"        case {quoted(command)}", *continued(wrapped("            set names " + " ".join(names), " " * 16))]
    lines += ["    end", "    contains -- $argv[2] $names", "end"]
    for command, groups in commands.items():
        positional = positional_words(groups)
        if positional:
            lines.append(f"complete -c ddplaunch -n {quoted(f'__ddplaunch_is {command}')} -f -a {quoted(' '.join(positional))}")
        lines += [fish_line(command, option) for option in named(groups)]
    return lines


PARTS = {("ddplaunch.bash", "options"): bash_table, ("_ddplaunch", "options"): zsh_table, ("ddplaunch.fish", "options"): fish_table}
