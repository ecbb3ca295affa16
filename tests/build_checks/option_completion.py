"""The generated parts of the shell completions (option_pages.py): the options of each command, and what their values can be.

Options of other launchers are not offered. It matters that some take a value, which is not the worker.
"""
import re
import textwrap

# Placeholders that say what a value is, unless the table of options says more.
SOURCES = {"FILE": "file", "DIR": "directory"}
# Options of ddplaunch from which the shells derive hosts and ranks, by the names of their variables.
INPUTS = {"hostfile": "--hostfile", "hosts": "--host", "nproc": "--nproc-per-node", "nnodes": "--nnodes", "ntasks": "--ntasks"}

# A program of awk that reads a hostfile, or a line of --host. It prints the hosts (what=names), or the ranks of the job (what=ranks).
# A host without slots has one rank. The text stands in single quotes in all three shells.
NODES = r"""
function host(name, slots,    items, before, after, count, list, i, ends, range, n) {
  sub(/^[^@]*@/, "", name)
  if (match(name, /:[0-9]+$/)) slots = substr(name, RSTART + 1)
  sub(/:.*/, "", name)
  items = "-"; before = name; after = ""
  if (match(name, /\[[0-9,-]+\]/)) {
    items = substr(name, RSTART + 1, RLENGTH - 2); before = substr(name, 1, RSTART - 1); after = substr(name, RSTART + RLENGTH)
  }
  if (before after !~ /^[A-Za-z0-9._-]+$/) return
  count = split(items, list, ",")
  for (i = 1; i <= (items == "-" ? 1 : count); i++) {
    ends = split(list[i], range, "-")
    if (items == "-") ends = range[1] = 1
    for (n = range[1] + 0; n <= range[ends] + 0 && n < range[1] + 1000; n++) {
      slots_of[++hosts] = slots == "" ? 1 : slots
      if (what == "names") print items == "-" ? name : sprintf("%s%0" length(range[1]) "d%s", before, n, after)
    }
  }
}
{ sub(/#.*/, ""); slots = match($0, /[ ]slots=[0-9]+/) ? substr($0, RSTART + 7, RLENGTH - 7) : ""
  item = ""; inside = 0
  for (at = 1; at <= length($1); at++) {
    char = substr($1, at, 1)
    inside = char == "[" || inside && char != "]"
    if (char == "," && !inside) { host(item, slots); item = "" } else item = item char
  }
  host(item, slots) }
END {
  if (what != "ranks" || nproc != "" && nproc !~ /^[1-9][0-9]*$/) exit
  sub(/.*:/, "", nnodes)
  nodes = nnodes > 0 && (!hosts || nnodes + 0 < hosts) ? nnodes : hosts
  for (n = 1; n <= nodes && nproc == "" && hosts; n++) ranks += slots_of[n]
  if (nproc != "") ranks = nproc * (nodes ? nodes : 1)
  if (ntasks ~ /^[1-9][0-9]*$/) ranks = ntasks
  for (n = 0; n < ranks && n < 65536; n++) print n
}"""


def value_of(option):
    """Returns (source, words): what completes the value besides the words. The source of any other value is "any"."""
    parts = option["value"].strip("[]").split("|")
    words = option["words"] or [part for part in parts if re.fullmatch(r"[a-z0-9][\w.-]*|-", part)]
    found = [SOURCES[part] for part in parts if part in SOURCES]
    source = option["completion"] if option["completion"] != "nothing" else found[0] if found else "any"
    return "file" if source == "hostfile" else source, words


def described(option):
    """The help without the page that says more, and as in --help the options that are needed."""
    needed = f"; only with {option['only_with']}" if option["only_with"] else ""
    return re.sub(r" \(docs/users/[^)]*\)|[,;] docs/users/[\w.]+\.md", "", option["help"]) + needed


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


def inputs(groups, others):
    """Yields (variable, names) of the options in INPUTS."""
    for variable, name in INPUTS.items():
        option = next(option for option in named(groups) if name in option["names"])
        yield variable, option["names"] + other_names_of("ddplaunch", option, others)


def other_names_without_option(command, others):
    return [name for name, target in others.items() if command == "ddplaunch" and not target]


def quoted(text):
    return "'" + text.replace("'", "'\\''") + "'"


def wrapped(text, indent):
    return textwrap.wrap(text, 130, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def continued(lines):
    """One command of a shell on several lines."""
    return [line + " \\" for line in lines[:-1]] + lines[-1:]


def verbs_of(printed):
    """Returns the names of the verbs that start or test a job, with the options of ddplaunch, and of those about jobs, with their own."""
    names = [verb["name"] for verb in printed["verbs"]]
    return ([name for name in names if f"ddplaunch {name}" not in printed["commands"]],
            [name for name in names if f"ddplaunch {name}" in printed["commands"]])


# --- bash -----------------------------------------------------------------------------------------------------------

def bash_case(command, names, facts):
    # textwrap breaks no line at "~".
    lines = wrapped("    " + " | ".join(f"'{command} {name}'".replace(" ", "~") for name in names) + ")", "      ")
    lines[-1] += f" {' '.join(facts)} ;;"
    return continued([line.replace("~", " ") for line in lines])


def bash_table(commands, others):
    lines = ["_ddplaunch_table() {", "  source='' words='' optional='' repeats='' input=''", '  case "$1 $2" in']
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
            for variable, name in INPUTS.items():
                if command == "ddplaunch" and name in option["names"]:
                    facts.append(f"input={variable}")
            if facts:
                lines += bash_case(command, option["names"] + other_names_of(command, option, others), facts)
        if names := other_names_without_option(command, others):
            lines += bash_case(command, names, ["source='any'"])
    return [*lines, "  esac", "}"]


def nodes_program(commands, others):
    return ["awk -v what=\"$1\" -v nproc=\"$nproc\" -v nnodes=\"$nnodes\" -v ntasks=\"$ntasks\" '" + NODES.lstrip("\n") + "' 2>/dev/null"]


def bash_verbs(printed):
    starting, operating = verbs_of(printed)
    return [f"_ddplaunch_starting={quoted(' '.join(starting))}", f"_ddplaunch_operating={quoted(' '.join(operating))}"]


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
    lines += ["  esac", "}", "_ddplaunch_inputs=("]
    return [*lines, *(f"  {variable} {quoted(' '.join(names))}" for variable, names in inputs(commands["ddplaunch"], others)), ")"]


def zsh_verbs(printed):
    starting, operating = verbs_of(printed)
    return [f"_ddplaunch_starting=({' '.join(starting)})", f"_ddplaunch_operating=({' '.join(operating)})"]


# --- fish -----------------------------------------------------------------------------------------------------------

FISH_CALLS = {"program": "(__fish_complete_command)", "job_id": "(__ddplaunch_jobs)", "rank": "(__ddplaunch_ranks)",
              "host": "(__ddplaunch_hosts)", "directory": "(__fish_complete_directories)"}


def fish_quoted(text):
    return quoted(text).replace("'\\''", "\\'")


def fish_programs(command):
    """A command of train belongs to two programs: to ddplaunch, and to train itself."""
    return "-c " + (command.split()[0] if command.startswith("ddplaunch") else "ddplaunch -c train")


def fish_lines(command, option):
    """fish offers no value of an option that is written with underscores, so such a name has a line of its own."""
    yield fish_line(command, option, option["names"], "")
    other = [name.replace("-", "_").replace("__", "--", 1) for name in option["names"] if name.startswith("--") and "-" in name[2:]]
    if option["value"] and other:
        yield fish_line(command, option, other, "; and __ddplaunch_has_underscore")


def fish_line(command, option, names, condition):
    parts = ["complete", fish_programs(command), "-n", quoted(f"__ddplaunch_is {command}{condition}")]
    for name in names:
        parts += ["-l", name[2:]] if name.startswith("--") else ["-s", name[1:]]
    if option["value"]:
        source, words = value_of(option)
        if not is_optional(option):
            parts.append("-r")
        parts.append("-F" if source == "file" else "-f")
        words = [*words, *([FISH_CALLS[source]] if source in FISH_CALLS else [])]
        if words:
            parts += ["-a", quoted(" ".join(words))]
    return " ".join([*parts, "-d", fish_quoted(described(option))])


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
            lines.append(f"complete {fish_programs(command)} -n {quoted(f'__ddplaunch_is {command}')} -f -a {quoted(' '.join(positional))}")
        lines += [line for option in named(groups) for line in fish_lines(command, option)]
    return lines


def fish_inputs(commands, others):
    lines = ["function __ddplaunch_names_of", '    switch "$argv[1]"']
    for variable, names in inputs(commands["ddplaunch"], others):
        lines += [f"        case {variable}", "            string split ' ' -- " + quoted(" ".join(names))]
    return [*lines, "    end", "end"]


def fish_nodes(commands, others):
    return ["    awk -v what=$argv[1] -v nproc=\"$nproc\" -v nnodes=\"$nnodes\" -v ntasks=\"$ntasks\" '" + NODES.lstrip("\n") + "' 2>/dev/null"]


def fish_verbs(printed):
    starting, operating = verbs_of(printed)
    return [f"set -g __ddplaunch_starting {' '.join(starting)}", f"set -g __ddplaunch_operating {' '.join(operating)}",
            *(f"complete -c ddplaunch -n __ddplaunch_is_first -a {verb['name']} -d {fish_quoted(verb['help'])}" for verb in printed["verbs"])]


VERBS = {"ddplaunch.bash": bash_verbs, "_ddplaunch": zsh_verbs, "ddplaunch.fish": fish_verbs}
PARTS = {("ddplaunch.bash", "options"): bash_table, ("_ddplaunch", "options"): zsh_table, ("ddplaunch.fish", "options"): fish_table,
         ("ddplaunch.bash", "nodes"): nodes_program, ("_ddplaunch", "nodes"): nodes_program, ("ddplaunch.fish", "nodes"): fish_nodes,
         ("ddplaunch.fish", "inputs"): fish_inputs}


def part(file, name, printed):
    """Returns the lines of the generated part `name` of a completion. Raises KeyError if there is no such part."""
    return VERBS[file](printed) if name == "verbs" else PARTS[file, name](printed["commands"], printed["other_names"])
