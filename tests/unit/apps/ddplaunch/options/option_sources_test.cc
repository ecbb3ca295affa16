#include "apps/ddplaunch/options/option_sources.h"

#include "apps/ddplaunch/options/job_options.h"
#include "tests/support/catch.h"
#include "tests/unit/apps/ddplaunch/options/fake_process_context.h"

using ddp::choose_options;
using ddp::GivenOption;
using ddp::JobOptions;
using ddp::OptionSource;
using ddp::launcher::WorkerCommand;
using ddp::test::Env;
using ddp::test::FakeContext;
using ddp::test::Texts;

namespace {

const char kSettings[] = "/home/ann/.config/ddplaunch/config.yaml";

/// Returns "--name value origin" of each option that counts.
Texts chosen(const std::vector<OptionSource>& sources) {
  const JobOptions options("/");
  Texts texts;
  for (const GivenOption& option : choose_options(sources, options.table))
    texts.push_back(option.name + ' ' + option.value + ' ' + option.origin);
  return texts;
}

GivenOption given(const std::string& name, const std::string& value, const std::string& origin) {
  return {.name = name, .value = value, .origin = origin};
}

}  // namespace

TEST_CASE("Each source of options replaces all weaker ones") {
  // One option, given by every set of the five sources: the strongest of the set counts.
  FakeContext world;
  world.files["c.yaml"] = "distributed_type: MULTI_GPU\nmain_process_port: 4004\n";
  for (unsigned set = 0; set < 32; ++set) {
    INFO(set);
    Texts args;
    world.env = {{"HOME", "/home/ann"}};
    world.files[kSettings] = (set & 1) != 0 ? "master-port: 4005\n" : "";
    if ((set & 2) != 0) args.insert(args.end(), {"--accelerate-config", "c.yaml"});
    if ((set & 4) != 0) world.env.emplace_back("PET_MASTER_PORT", "4003");
    world.files["job.yaml"] = (set & 8) != 0 ? "master-port: 4002\n" : "";
    if ((set & 16) != 0) args.insert(args.end(), {"--master-port", "4001"});
    args.insert(args.end(), {"--job-file", "job.yaml", "w"});
    const int expected = (set & 16) != 0  ? 4001
                         : (set & 8) != 0 ? 4002
                         : (set & 4) != 0 ? 4003
                         : (set & 2) != 0 ? 4004
                         : (set & 1) != 0 ? 4005
                                          : 0;
    CHECK(world.spec(args).master_port == expected);
  }
}

TEST_CASE("Other names, alternatives and lists of several sources") {
  CHECK(chosen({{given("-t", "3", "a")}, {given("--tee", "1", "b")}}) == Texts{"-t 3 a"});
  CHECK(chosen({{given("--host", "x", "a"), given("--host", "y", "a")}, {given("--hostfile", "h", "b")}}) ==
        Texts{"--host x a", "--host y a"});
  CHECK(chosen({{given("-n", "3", "a")}, {given("--nproc-per-node", "1", "b")}}) == Texts{"-n 3 a"});
  // These add up, the weakest first.
  CHECK(
      chosen({{given("--env", "A=1", "a")}, {}, {given("--env", "A=2", "b"), given("--env", "B=1", "b")}}) ==
      Texts{"--env A=2 b", "--env B=1 b", "--env A=1 a"});
  // Both in one source: the checks of the job report it.
  CHECK(chosen({{given("--host", "x", "a"), given("--hostfile", "h", "a")}}).size() == 2);
}

TEST_CASE("A flag that is false switches off that of a weaker source") {
  OptionSource job = {given("--quiet", "", "a")};
  job[0].is_false = true;
  CHECK(chosen({job, {given("--quiet", "", "b")}}).empty());
  CHECK(chosen({{given("--quiet", "", "b")}, job}) == Texts{"--quiet  b"});
}

TEST_CASE("A job file holds options and the worker; the command line replaces both") {
  FakeContext world;
  world.files["job.yaml"] =
      "# a comment\nnproc-per-node: 2\nmodule: true\nenv:\n  A: x=y z\n  B: ''\nworker: [pkg.train, --lr, "
      "0.1, '']\n";
  for (const Texts& args : {Texts{"run", "job.yaml"}, Texts{"--job-file", "job.yaml"},
                            Texts{"run", "--job-id", "j", "job.yaml", "--quiet"}}) {
    const auto spec = world.spec(args);
    CHECK(spec.nproc.number == 2);
    CHECK(spec.command.kind == WorkerCommand::Kind::kModule);
    CHECK(spec.command.argv == Texts{"pkg.train", "--lr", "0.1", ""});
    CHECK(spec.explicit_env == Env{{"A", "x=y z"}, {"B", ""}});
  }
  const auto other =
      world.spec({"run", "job.yaml", "--nproc-per-node=4", "--env", "B=2", "x.py", "--nnodes"});
  CHECK(other.nproc.number == 4);
  CHECK(other.command.kind == WorkerCommand::Kind::kPython);
  CHECK(other.command.argv == Texts{"x.py", "--nnodes"});
  CHECK(other.explicit_env == Env{{"A", "x=y z"}, {"B", "2"}});
  world.files["job.yaml"] =
      "{\"worker\": \"./prog 'a b'\", \"env\": [\"A=1\", \"DATA\"], \"stdin\": \"none\"}";
  CHECK(world.spec({"run", "job.yaml"}).command.argv == Texts{"./prog", "a b"});
  CHECK(world.spec({"run", "job.yaml"}).explicit_env == Env{{"A", "1"}, {"DATA", "/data"}});
  CHECK(world.job({"check", "--job-file", "job.yaml"}).verb == ddp::Verb::kCheck);
  CHECK(world.spec({"--", "run", "job.yaml"}).command.argv == Texts{"run", "job.yaml"});
}

TEST_CASE("Mistakes around ddplaunch run") {
  FakeContext world;
  world.files["job.yaml"] = "nproc-per-node: 2\n";
  const Texts none = {"ddplaunch: run needs a job file: ddplaunch run JOB.yaml"};
  CHECK(world.errors({"run"}).front() == none.front());
  CHECK(world.errors({"run", "train.py", "--lr", "1"}) ==
        Texts{"ddplaunch: run expects a job file, in YAML; to start train.py omit run"});
  CHECK(world.errors({"run", "gone.yaml"}) ==
        Texts{"ddplaunch: job file gone.yaml: No such file or directory"});
  CHECK(world.errors({"run", "job.yaml"}) ==
        Texts{"ddplaunch: no worker given; the job file has none either"});
  CHECK(world.errors({"run", "job.yaml", "--nope"}).front().find("unknown option --nope") !=
        std::string::npos);
  CHECK(world.text({"run", "--help"}).starts_with("usage: ddplaunch"));
}

TEST_CASE("The user's settings hold for all jobs") {
  FakeContext world;
  world.files[kSettings] = "label: ''\nnode-timeout: 40s\nenv: {A: 1}\n";
  CHECK(world.spec({"w"}).output.label.empty());
  CHECK(world.spec({"w"}).node_timeout == std::chrono::seconds(40));
  CHECK(world.spec({"--node-timeout", "5s", "w"}).node_timeout == std::chrono::seconds(5));
  CHECK(world.spec({"--env", "A=2", "w"}).explicit_env == Env{{"A", "2"}});
  world.env.emplace_back("XDG_CONFIG_HOME", "/cfg");
  CHECK_FALSE(world.spec({"w"}).output.label.empty());
  world.files["/cfg/ddplaunch/config.yaml"] = "quiet: yes\n";
  CHECK(world.spec({"w"}).quiet);
  world.files["job.yaml"] = "quiet: false\n";
  CHECK_FALSE(world.spec({"--job-file", "job.yaml", "w"}).quiet);
  CHECK_FALSE(world.spec({"--quiet=false", "w"}).quiet);
  CHECK(world.spec({"--job-file", "job.yaml", "--quiet=true", "w"}).quiet);
  world.files["/cfg/ddplaunch/config.yaml"] = "untrusted";
  CHECK(world.job({"w"}).notes ==
        Texts{"ddplaunch: settings ignored: /cfg/ddplaunch/config.yaml: it is another's"});
  CHECK_FALSE(world.spec({"w"}).quiet);
}

TEST_CASE("Settings for jobs of another kind are no error") {
  FakeContext world;
  world.files[kSettings] = "launcher: daemon\n";
  CHECK(world.spec({"w"}).launcher == ddp::launcher::LauncherKind::kLocal);
  CHECK(world.spec({"--host", "a", "w"}).launcher == ddp::launcher::LauncherKind::kDaemon);
  CHECK(world.errors({"--launcher", "daemon", "w"}).size() == 1);
  world.files[kSettings] = "daemon-port: 4000\nssh-config: none\n";
  CHECK(world.job({"--host", "a", "w"}).notes.empty());
  CHECK(world.spec({"--launcher", "daemon", "--host", "a", "w"}).daemon_port == 4000);
  CHECK(world.errors({"--host", "a", "--daemon-port", "4000", "w"}).size() == 1);
}

TEST_CASE("A rule between options names the place of those in files") {
  FakeContext world;
  world.files["job.yaml"] = "worker: w\nport-range: 20000-20100\nmaster-port: 7\n";
  const std::string rule =
      "ddplaunch: --master-port 7 is not in --port-range 20000-20100; omit one of them, or use matching "
      "values";
  CHECK(world.errors({"run", "job.yaml"}) == Texts{rule,
                                                   "ddplaunch: job.yaml:2:13: --port-range is given here",
                                                   "ddplaunch: job.yaml:3:14: --master-port is given here"});
  CHECK(world.errors({"run", "job.yaml", "--port-range", "20000-20100"}).size() == 2);
  world.files["job.yaml"] = "worker: w\nenv: [A=1, B=2, C]\n";
  CHECK(world.errors({"run", "job.yaml"}).back() == "ddplaunch: job.yaml:2:17: --env is given here");
  CHECK(world.errors({"run", "job.yaml"}).size() == 2);
}

TEST_CASE("The plan shows where each option is given") {
  FakeContext world;
  world.files["job.yaml"] = "worker: [w]\nnproc-per-node: 2\nenv: {TOKEN: secret}\nsetup: . secret\n";
  world.files[kSettings] = "label: ''\nquiet: true\n";
  world.env.emplace_back("PET_MAX_RESTARTS", "3");
  const std::string text = world.text({"run", "job.yaml", "--dry-run", "--oversubscribe"});
  const std::size_t at = text.find("\noptions, ");
  REQUIRE(at != std::string::npos);
  CHECK(text.substr(at) ==
        "\noptions, and where they are given\n"
        "  --label ''           /home/ann/.config/ddplaunch/config.yaml:1:8\n"
        "  --quiet              /home/ann/.config/ddplaunch/config.yaml:2:8\n"
        "  --max-restarts 3     PET_MAX_RESTARTS\n"
        "  --nproc-per-node 2   job.yaml:2:17\n"
        "  --env TOKEN          job.yaml:3:7\n"
        "  --setup ...          job.yaml:4:8\n"
        "  --job-file job.yaml  command line\n"
        "  --oversubscribe      command line\n"
        "  worker               job.yaml:1:9\n"
        "all others have their defaults\n");
  CHECK(text.find("secret") == std::string::npos);
  FakeContext plain;
  CHECK(plain.text({"--dry-run", "w"}).ends_with("\n\nall options have their defaults\n"));
}
