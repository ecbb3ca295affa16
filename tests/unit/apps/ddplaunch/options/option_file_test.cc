#include "apps/ddplaunch/options/option_sources.h"

#include "tests/support/catch.h"
#include "tests/unit/apps/ddplaunch/options/fake_process_context.h"

using ddp::CommandLine;
using ddp::Diagnostics;
using ddp::GivenOption;
using ddp::OptionFileKind;
using ddp::read_option_file;
using ddp::test::Texts;

namespace {

Texts errors_of(const std::string& text, OptionFileKind kind = OptionFileKind::kJob) {
  Diagnostics diagnostics;
  read_option_file(text, "f.yaml", kind, diagnostics);
  return diagnostics.errors;
}

CommandLine file_of(const std::string& text) {
  Diagnostics diagnostics;
  CommandLine file = read_option_file(text, "f.yaml", OptionFileKind::kJob, diagnostics);
  CHECK(diagnostics.errors == Texts{});
  return file;
}

}  // namespace

TEST_CASE("Options of a file keep the place of their values") {
  const CommandLine file = file_of("---\nhost:\n  - a:2\n  - b:2\nbars: off\nfold: off\n");
  REQUIRE(file.options.size() == 4);
  CHECK(file.options[0].name == "--host");
  CHECK(file.options[0].origin == "f.yaml:3:5");
  CHECK(file.options[1].value == "b:2");
  CHECK(file.options[1].origin == "f.yaml:4:5");
  CHECK(file.options[2].value == "off");  // a word of --bars, and no truth value
  CHECK_FALSE(file.options[2].is_false);
  CHECK(file.options[3].is_false);
  CHECK(file.worker.empty());
  CHECK(file_of("").options.empty());
  CHECK(file_of("# nothing\n").options.empty());
}

TEST_CASE("Every mistake in a job file has its place") {
  const std::string f = "ddplaunch: f.yaml:";
  const std::vector<std::pair<std::string, Texts>> cases = {
      {"nproc-per-node: many\n",
       {f + "1:17: --nproc-per-node many: give a whole number from 1 to 65535, or auto, gpu or cpu"}},
      {"a: 1\nnproc-per-nod: 2\n",
       {f + "1:1: unknown option \"a\"; ddplaunch --help all lists all options",
        f + "2:1: unknown option \"nproc-per-nod\"; did you mean nproc-per-node?"}},
      {"--nnodes: 2\n", {f + "1:1: unknown option \"--nnodes\"; did you mean nnodes?"}},
      {"nproc_per_node: 2\n", {f + "1:1: unknown option \"nproc_per_node\"; did you mean nproc-per-node?"}},
      {"quiet: 3\n", {f + "1:8: quiet must be true or false"}},
      {"env:\n  A: 1\n  A: 2\n", {f + "3:3: A is given twice (first on line 2)"}},
      {"env: {'A=B': 1, '': 2}\n",
       {f + "1:7: env: \"A=B\" is no name of a variable", f + "1:17: env: \"\" is no name of a variable"}},
      {"quiet: 'true'\n", {f + "1:8: quiet must be true or false"}},
      {"hostfile:\n", {f + "1:1: hostfile has no value"}},
      {"hostfile: [a, b]\n", {f + "1:11: hostfile needs a value: FILE"}},
      {"hostfile: ''\n", {f + "1:11: --hostfile has an empty value"}},
      {"host: [a, [b], {c: d}]\n",
       {f + "1:11: host needs a value: LIST", f + "1:16: host needs a value: LIST"}},
      {"env:\n  A: [1]\n", {f + "2:6: env A needs one value"}},
      {"env:\n  A:\n", {f + "2:3: env A has no value; an empty one is ''"}},
      {"worker:\nquiet:\n", {f + "1:1: worker has no value", f + "2:1: quiet has no value"}},
      {"nnodes: 1\nnnodes: 2\n", {f + "2:1: nnodes is given twice (first on line 1)"}},
      {"store: disk\n", {f + "1:8: unknown --store \"disk\" (agent, worker)"}},
      {"help: true\n", {f + "1:1: help cannot be given in a file; give --help on the command line"}},
      {"job-file: b\n", {f + "1:1: job-file cannot be given in a file; give --job-file on the command line"}},
      {"worker:\n  a: 1\n", {f + "2:3: worker needs the words of a command line: [train.py, --lr, 0.1]"}},
      {"worker: \"'a\"\n", {f + "1:9: worker: the quote ' is not closed"}},
      {"worker: []\n", {f + "1:9: worker needs the words of a command line: [train.py, --lr, 0.1]"}},
      {"label: \"a\\0b\"\n", {f + "1:8: a value cannot hold a zero byte"}},
      {"- a\n", {f + "1:1: expected lines of OPTION: VALUE, such as nproc-per-node: 8"}},
      {"train.py\n", {f + "1:1: expected lines of OPTION: VALUE, such as nproc-per-node: 8"}},
      {"nnodes: 1\n---\nnnodes: 2\n",
       {f + "3:1: a second document begins here (after ---); a job file has only one"}},
  };
  for (const auto& [text, errors] : cases)
    CHECK(errors_of(text) == errors);
  const Texts unreadable = errors_of("nnodes: [1\nhost: 2\n");  // the reason is the YAML library's text
  REQUIRE(unreadable.size() == 1);
  CHECK(unreadable[0].starts_with(f + "2:"));
}

TEST_CASE("The user's settings have no options of one job") {
  const std::string f = "ddplaunch: f.yaml:1:1: ";
  for (const char* name :
       {"hostfile", "nnodes", "nproc-per-node", "job-id", "dry-run", "job-file", "node-rank"}) {
    CHECK(errors_of(std::string(name) + ": 1\n", OptionFileKind::kSettings) ==
          Texts{f + name + " is an option of one job; give it on the command line or in a job file"});
  }
  CHECK(errors_of("worker: x\n", OptionFileKind::kSettings) ==
        Texts{f + "unknown option \"worker\"; ddplaunch --help all lists all options"});
  CHECK(errors_of("label: x\nssh-config: none\n", OptionFileKind::kSettings) == Texts{});
}
