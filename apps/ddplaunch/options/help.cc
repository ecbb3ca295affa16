// The verbs, and what --help and --version print.
#include <array>

#include "apps/ddplaunch/options/options.h"
#include "base/program.h"

namespace ddp {
namespace {

constexpr std::array kVerbs = {
    VerbRow{"Run", "run", "JOB.yaml [options]", "start the job that a file describes",
            "Starts the job that a file describes (docs/users/config.md). Options of the command line take "
            "precedence."},
    VerbRow{"Run", "check", "[options] [WORKER [arguments of the worker]]",
            "test every host for what would break the job",
            "Tests every host for problems that would break the job, and starts no worker "
            "(docs/users/check.md)."},
    VerbRow{"Run", "hosts", "[options]", "print the ranks and addresses of the job",
            "Prints the ranks and addresses of the job, and starts no worker (docs/users/check.md)."},
    VerbRow{"Watch", "ps", "[options]", "list your jobs on this machine",
            "Lists your jobs on this machine: those that run, and those whose ddplaunch was killed."},
    VerbRow{"Watch", "status", "[options] [JOB]", "show a job, its nodes and its ranks",
            "Shows the state of a job, its nodes and its ranks."},
    VerbRow{"Watch", "logs", "[options] [JOB]", "print what the workers wrote",
            "Prints what the workers of a job wrote, while it runs and after its end."},
    VerbRow{"Watch", "attach", "[options] [JOB]", "follow a running job as its own terminal does",
            "Shows the output of a running job from now on and the changes of its state, and exits with its "
            "exit code. Ctrl-C leaves the job alone."},
    VerbRow{"Watch", "dashboard", "[options] [JOB]", "serve a page about a job, and metrics",
            "Serves a page that shows a job while it runs, and metrics for Prometheus. Ctrl-C ends the page, "
            "not the job."},
    VerbRow{"Control", "stop", "[options] [JOB]", "end a job as SIGTERM does",
            "Stops a job as SIGTERM does, and returns when it has ended."},
    VerbRow{"Control", "wait", "[options] [JOB]", "wait for the end, and exit with the job's code",
            "Waits for the end of a job, and exits with its exit code."},
    VerbRow{"Control", "exec", "[options] [JOB] -- COMMAND [ARG…]", "run a command beside a worker",
            "Runs a command in the environment and the directory of a worker, on its node."},
    VerbRow{"Control", "stacks", "[options] [JOB]", "print what each worker does now",
            "Prints what each worker does now: its state, and the stacks of its threads."},
    VerbRow{"Control", "report", "-o FILE [JOB]", "write a page about a job into a file",
            "Writes a page about a job into one file, for a browser: how it ended, its attempts and events, "
            "and the last output of failed ranks."},
    VerbRow{"Control", "clean", "[options] [JOB]", "end what a killed ddplaunch left on the hosts",
            "Ends what is left of a job on its hosts, whose ddplaunch was killed."},
    VerbRow{"Control", "rm", "[options] JOB…", "delete the files of ended jobs",
            "Deletes the files of jobs that have ended, and their entries in the list of jobs. Files of "
            "--job-dir stay."},
};

/// The options that most jobs use.
constexpr std::string_view kMostUsed[] = {"--hostfile", "--host",   "--nproc-per-node", "--nnodes",
                                          "--env",      "--chdir",  "--max-restarts",   "--hang-timeout",
                                          "--log-dir",  "--job-id", "--detach",         "--dry-run"};

std::string usage_of(const VerbRow& verb) {
  return "usage: ddplaunch " + std::string(verb.name) + ' ' + std::string(verb.arguments) + "\n\n" +
         std::string(verb.text) + '\n';
}

}  // namespace

std::span<const VerbRow> verbs() {
  return kVerbs;
}

const VerbRow* find_verb(std::string_view name) {
  const auto* const found = std::ranges::find(kVerbs, name, &VerbRow::name);
  return found == kVerbs.end() ? nullptr : found;
}

std::string verb_usage(std::string_view name) {
  return usage_of(*find_verb(name));
}

std::string brief_help(const OptionTable& table) {
  std::string text =
      "usage: ddplaunch [options] WORKER [arguments of the worker]\n"
      "       ddplaunch VERB [options] [JOB]\n"
      "Starts WORKER on every node of a cluster, or of this machine when no hosts are given.\n"
      "WORKER is train (the bundled trainer), a .py file, or any program.\n\n";
  std::string_view section;
  for (const VerbRow& verb : kVerbs) {
    if (verb.section != section) text += std::string(section = verb.section) + ":\n";
    text += "  " + std::string(verb.name) + std::string(12 - verb.name.size(), ' ') + std::string(verb.help) +
            '\n';
  }
  return text + "\nOptions that most jobs use:\n" + table.help_of(kMostUsed, true) +
         "\nddplaunch --help all lists all options, ddplaunch VERB --help those of a verb.\n";
}

std::string verb_help(const OptionTable& table, Verb verb) {
  constexpr std::string_view kCheck[] = {"--deep", "--collectives", "--min-busbw", "--json"};
  constexpr std::string_view kHosts[] = {"--json"};
  constexpr std::string_view kRun[] = {"--dry-run", "--detach"};
  const char* const name = verb == Verb::kCheck ? "check" : verb == Verb::kHosts ? "hosts" : "run";
  const std::span<const std::string_view> own =
      verb == Verb::kCheck   ? std::span<const std::string_view>(kCheck)
      : verb == Verb::kHosts ? std::span<const std::string_view>(kHosts)
                             : std::span<const std::string_view>(kRun);
  return verb_usage(name) + "\nOptions:\n" + table.help_of(own, false) +
         "The options of a job count, too: ddplaunch --help all.\n";
}

std::string version_text() {
  return "ddplaunch " + std::string(version()) +
         "\n"
         "commit:    " DDP_COMMIT
         "\n"
         "compiler:  " DDP_COMPILER
         "\n"
         "libraries: " DDP_LIBRARIES "\n";
}

}  // namespace ddp
