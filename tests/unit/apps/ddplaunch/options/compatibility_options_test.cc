#include "apps/ddplaunch/options/option_sources.h"

#include <algorithm>
#include <set>

#include "apps/ddplaunch/options/job_options.h"
#include "tests/support/catch.h"
#include "tests/unit/apps/ddplaunch/options/fake_process_context.h"

using ddp::compatibility_options;
using ddp::CompatibilityOption;
using ddp::Diagnostics;
using ddp::JobOptions;
using ddp::scan_command_line;
using ddp::SupportStatus;
using ddp::launcher::JobSpec;
using ddp::launcher::LauncherKind;
using ddp::rendezvous::ProcsRule;
using ddp::test::Env;
using ddp::test::FakeContext;
using ddp::test::Texts;

namespace {

Diagnostics diagnostics_of(const Texts& args) {
  JobOptions options("/");
  Diagnostics diagnostics;
  const auto line = scan_command_line(args, options.table, diagnostics);
  for (const std::string& error : options.table.fill(ddp::option_words(line.options, options.table)))
    diagnostics.fail(error);
  return diagnostics;
}

bool is_other(const std::string& name) {
  return std::ranges::count(compatibility_options(), name, &CompatibilityOption::name) > 0;
}

FakeContext with_variables(const Env& variables) {
  FakeContext world;
  world.env.insert(world.env.end(), variables.begin(), variables.end());
  return world;
}

}  // namespace

TEST_CASE("Each compatibility option does what its row says") {
  const JobOptions options("/");
  const ddp::OptionTable& table = options.table;
  std::set<std::string_view> seen;
  for (const CompatibilityOption& row : compatibility_options()) {
    const std::string name(row.name);
    CAPTURE(name);
    CHECK(seen.insert(row.name).second);
    CHECK_FALSE(table.knows(row.name));
    CHECK(name.find('_') == std::string::npos);
    Texts args = {name, "3", "w"};
    if (!row.takes_value) args.erase(args.begin() + 1);
    const Diagnostics found = diagnostics_of(args);
    switch (row.status) {
      case SupportStatus::kRenamed:
        CHECK(table.knows(row.text));
        CHECK(table.takes_value(row.text));
        CHECK_FALSE(row.takes_value);
        CHECK(found.errors.empty());
        break;
      case SupportStatus::kNoted:
        CHECK_FALSE(row.text.empty());
        CHECK(found.notes == Texts{"ddplaunch: " + name + " has no effect: " + std::string(row.text)});
        CHECK(found.errors.empty());
        break;
      case SupportStatus::kRefused:
        CHECK_FALSE(row.text.empty());
        if (!row.value.empty()) {
          const Diagnostics accepted =
              diagnostics_of({name, std::string(row.value.substr(0, row.value.find(' '))), "w"});
          CHECK(accepted.errors.empty());
          CHECK(accepted.notes.empty());
        }
        CHECK(found.errors ==
              Texts{"ddplaunch: " + name + " is not an option of ddplaunch: " + std::string(row.text)});
        break;
    }
  }
}

TEST_CASE("Each name of another launcher sets the option that has it") {
  const JobOptions options("/");
  for (const auto& group : options.table.groups()) {
    for (const ddp::Option& option : group.options) {
      for (const std::string& name : ddp::split_names(option.other_names)) {
        CAPTURE(name);
        CHECK(options.table.find(name) == options.table.find(ddp::split_names(option.names).front()));
        CHECK_FALSE(is_other(name));
        Diagnostics diagnostics;
        const auto line = scan_command_line({name, "3", "w"}, options.table, diagnostics);
        REQUIRE(line.options.size() == 1);
        CHECK(line.options.front().name == ddp::split_names(option.names).back());
        CHECK(line.options.front().value == "3");
        CHECK(line.given == Texts{name, line.options.front().name});
      }
    }
  }
}

TEST_CASE("A value that asks for nothing is accepted where others are refused") {
  FakeContext world;
  CHECK(world.spec({"--dynamo_backend=no", "w"}).explicit_env == Env{{"ACCELERATE_DYNAMO_BACKEND", "NO"}});
  CHECK(world.spec({"--dynamo_backend", "NO", "w"}).explicit_env == Env{{"ACCELERATE_DYNAMO_BACKEND", "NO"}});
  CHECK(world.spec({"--mixed_precision=no", "w"}).explicit_env == Env{{"ACCELERATE_MIXED_PRECISION", "no"}});
  for (const char* name : {"--bind-to", "--cpu-bind", "--mpi"})
    CHECK(world.spec({name, "none", "w"}).explicit_env.empty());
  for (const char* other : {"--dynamo_backend=inductor", "--mixed_precision=bf16", "--bind-to=core"})
    CHECK(world.errors({other, "w"}).size() == 1);
}

TEST_CASE("Every option of torchrun that has a counterpart has a row") {
  const JobOptions options("/");
  const ddp::OptionTable& table = options.table;
  for (const std::string& name : ddp::split_names(
           "--nnodes,--nproc-per-node,--rdzv-backend,--rdzv-endpoint,--rdzv-id,--rdzv-conf,--standalone,"
           "--max-restarts,--monitor-interval,--start-method,--event-log-handler,--role,-m,--module,"
           "--no-python,--run-path,--log-dir,-r,--redirects,-t,--tee,--local-ranks-filter,--node-rank,"
           "--master-addr,--master-port,--signals-to-handle,--shutdown-timeout")) {
    CAPTURE(name);
    CHECK((table.knows(name) || is_other(name)));
  }
}

TEST_CASE("A command line of torchrun runs unchanged") {
  const ddp::RunJob job = FakeContext().job(
      {"--standalone", "--nnodes=1", "--nproc_per_node=gpu", "--max_restarts=3", "--rdzv_id=run7",
       "--rdzv_backend=c10d", "--node_rank=0", "--shutdown-timeout", "30", "--log_dir", "logs", "-r", "0:3",
       "--tee=1", "--local_ranks_filter=0,2", "train.py", "--lr", "0.1"});
  CHECK(job.spec.launcher == LauncherKind::kLocal);
  CHECK(job.spec.nproc.rule == ProcsRule::kGpu);
  CHECK(job.spec.job_id == "run7");
  CHECK(job.spec.stop_grace == std::chrono::milliseconds(30'000));
  CHECK(job.spec.max_restarts == 3);
  CHECK(job.spec.output.log_dir == "/data/run/logs/run7.20261121-034500-ab12cd");
  CHECK(job.spec.output.redirects.has(0, 2));
  CHECK_FALSE(job.spec.output.redirects.has(1, 2));
  CHECK(job.spec.output.tee.has(7, 1));
  CHECK_FALSE(job.spec.output.tee.has(7, 2));
  CHECK(job.spec.output.local_ranks_filter == std::vector<int>{0, 2});
  CHECK(job.notes ==
        Texts{"ddplaunch: --rdzv_backend has no effect: ddplaunch has one rendezvous of its own"});
}

TEST_CASE("torchrun's --master-addr of this machine is accepted and changes nothing") {
  for (const char* address : {"--master_addr=localhost", "--master-addr=127.0.0.1", "--master-addr=::1"})
    CHECK(FakeContext()
              .job({"--nnodes=1", "--node_rank=0", address, "--master_port=29501", "w"})
              .spec.master_port == 29501);
  CHECK(FakeContext().errors({"--master-addr=gpu01", "w"}).size() == 1);
}

TEST_CASE("Options of accelerate, srun and mpirun that mean the same are accepted, others are unknown") {
  const ddp::RunJob job = FakeContext().job({"--cpu", "--wd", "/tmp", "--use_env", "--tag-output", "w"});
  CHECK(job.spec.explicit_env == ddp::test::Env{{"ACCELERATE_USE_CPU", "true"}});
  CHECK(job.spec.chdir == "/tmp");
  CHECK(job.notes.size() == 2);
  for (const char* name : {"--fsdp_sharding_strategy", "--gres", "--map-by"})
    CHECK(FakeContext().errors({name, "x", "w"}).front().starts_with("ddplaunch: unknown option"));
}

TEST_CASE("Short options are explained by their meaning in other launchers") {
  FakeContext world;
  CHECK(world.errors({"-N", "2", "w"}) ==
        Texts{"ddplaunch: -N is not an option of ddplaunch: srun's -N is the number of nodes, here --nnodes; "
              "mpirun's -N is the number of workers on each node, here --nproc-per-node"});
  CHECK(world.errors({"-p", "2", "w"}) ==
        Texts{"ddplaunch: -p is not an option of ddplaunch: srun's -p is the partition: give it to salloc or "
              "sbatch; ssh's -p is the port: use port= in the hostfile; --nproc-per-node is the number of "
              "workers on each node"});
  for (const char* name : {"-H", "-w"})
    CHECK(world.spec({name, "a,b:2", "w"}).hosts.size() == 2);
  for (const Texts& total : {Texts{"-n", "3"}, Texts{"-n3"}, Texts{"-np", "3"}, Texts{"-np3"},
                             Texts{"--np", "3"}, Texts{"--ntasks=3"}, Texts{"--num_processes", "3"}}) {
    Texts args = total;
    args.emplace_back("w");
    CHECK(world.spec(args).nproc.number == 3);
  }
}

TEST_CASE("An unknown option has no follow-up errors about hosts") {
  const Texts misspelled = {"ddplaunch: unknown option --hostfle; did you mean --hostfile?"};
  CHECK(FakeContext().errors({"--hostfle", "hosts", "--nnodes", "2", "w"}) == misspelled);
  CHECK(FakeContext().errors({"--hostfle", "hosts", "--launcher", "daemon", "w"}) == misspelled);
}

TEST_CASE("-host and -npernode are accepted as in Open MPI") {
  const JobSpec spec = FakeContext().job({"-host", "a,b", "-npernode", "2", "w"}).spec;
  CHECK(spec.hosts.size() == 2);
  CHECK(spec.nproc.number == 2);
}

TEST_CASE("An unknown option is an error") {
  FakeContext world;
  CHECK(world.errors({"--nproc-per-nod", "4", "train"}) ==
        Texts{"ddplaunch: unknown option --nproc-per-nod; did you mean --nproc-per-node?"});
  CHECK(world.errors({"--host-file", "x", "w"}) ==
        Texts{"ddplaunch: unknown option --host-file; did you mean --hostfile?"});
  CHECK(world.errors({"--max-restart=3", "w"}) ==
        Texts{"ddplaunch: unknown option --max-restart; did you mean --max-restarts?"});
  CHECK(world.errors({"-nnodes", "x", "w"}) ==
        Texts{"ddplaunch: unknown option -nnodes; did you mean --nnodes?"});
  CHECK(world.errors({"--overscribe", "--quite", "w"}) ==
        Texts{"ddplaunch: unknown option --overscribe; did you mean --oversubscribe?",
              "ddplaunch: unknown option --quite; did you mean --quiet?"});
  // The next word is ambiguous: it could be the option's value or the worker.
  CHECK(
      world.errors({"--zebra", "x", "--nnodes", "none"}) ==
      Texts{"ddplaunch: unknown option --zebra; ddplaunch --help all lists all options; the worker's options "
            "follow the worker"});
  CHECK(
      world.errors({"--zebra=1", "--nnodes", "none", "w"}) ==
      Texts{"ddplaunch: unknown option --zebra; ddplaunch --help all lists all options; the worker's options "
            "follow the worker",
            "ddplaunch: --nnodes none: give a number of nodes, or MIN:MAX with MIN at most MAX"});
  CHECK(world.errors({"-Q", "w"}).size() == 1);
}

TEST_CASE("A missing, empty or superfluous value is an error") {
  FakeContext world;
  CHECK(world.errors({"--hostfile"})[0] == "ddplaunch: --hostfile needs a value: --hostfile FILE");
  CHECK(world.errors({"--hostfile", "--nproc-per-node", "4", "w"}) ==
        Texts{"ddplaunch: --hostfile needs a value: --hostfile FILE"});
  CHECK(world.errors({"--rdzv-id", "--", "w"}) == Texts{"ddplaunch: --rdzv-id needs a value: --rdzv-id ID"});
  CHECK(world.errors({"--num-nodes=", "w"}) == Texts{"ddplaunch: --num-nodes has an empty value"});
  CHECK(world.errors({"--hostfile=", "w"}) == Texts{"ddplaunch: --hostfile has an empty value"});
  CHECK(world.errors({"--oversubscribe=1", "w"}) ==
        Texts{"ddplaunch: --oversubscribe=1: give true, false, or no value"});
  CHECK(world.errors({"--standalone=1", "w"}) == Texts{"ddplaunch: --standalone takes no value"});
  CHECK(world.spec({"--label", "--> ", "w"}).output.label == "--> ");
  CHECK(world.spec({"--label=-x", "w"}).output.label == "-x");
}

TEST_CASE("torchrun's variables count as options and are reported once") {
  const auto job =
      with_variables(
          {{"PET_NPROC_PER_NODE", "3"}, {"PET_MAX_RESTARTS", "2"}, {"PET_STANDALONE", "1"}, {"PET_X", "y"}})
          .job({"w"});
  CHECK(job.spec.nproc.number == 3);
  CHECK(job.spec.max_restarts == 2);
  CHECK(job.spec.launcher == LauncherKind::kLocal);
  CHECK(job.notes ==
        Texts{"ddplaunch: options taken from the environment, as torchrun takes them: PET_NPROC_PER_NODE, "
              "PET_STANDALONE, PET_MAX_RESTARTS"});
}

TEST_CASE("A variable of torchrun without a counterpart is refused by its own name") {
  CHECK(
      with_variables({{"PET_LOCAL_ADDR", "10.0.0.1"}}).errors({"w"}) ==
      Texts{"ddplaunch: PET_LOCAL_ADDR=10.0.0.1: ddplaunch has no option like torchrun's --local-addr; unset "
            "PET_LOCAL_ADDR (docs/users/options.md says what to write instead)"});
}

TEST_CASE("The command line overrides torchrun's variables, under any name of the option") {
  const Env variables = {{"PET_NPROC_PER_NODE", "3"},
                         {"PET_RDZV_ID", "theirs"},
                         {"PET_TEE", "3"},
                         {"PET_SHUTDOWN_TIMEOUT", "9"},
                         {"PET_MASTER_ADDR", "10.0.0.9"}};
  const auto job = with_variables(variables).job({"--num_gpus=2", "--job-id", "ours", "--log-dir", "d", "-t",
                                                  "1", "--stop-grace=5", "--master-addr=127.0.0.1", "w"});
  CHECK(job.spec.nproc.number == 2);
  CHECK(job.spec.job_id == "ours");
  CHECK(job.registration.claims_id);
  CHECK(job.spec.stop_grace == std::chrono::seconds(5));
  CHECK(job.notes == Texts{});
  CHECK_FALSE(with_variables({{"PET_RDZV_ID", "theirs"}}).job({"w"}).registration.claims_id);
}

TEST_CASE("An empty variable and a flag of 0 count as absent") {
  const auto job =
      with_variables({{"PET_NNODES", ""}, {"PET_STANDALONE", "0"}, {"PET_MODULE", "00"}}).job({"w"});
  CHECK(job.notes == Texts{});
  CHECK(with_variables({{"PET_MODULE", "1"}}).spec({"pkg.train"}).command.kind ==
        ddp::launcher::WorkerCommand::Kind::kModule);
}

TEST_CASE("The only pod of a PyTorchJob runs as one node") {
  const ddp::launcher::JobSpec spec = with_variables({{"PET_NNODES", "1"},
                                                      {"PET_NODE_RANK", "0"},
                                                      {"PET_MASTER_ADDR", "job-master-0"},
                                                      {"PET_MASTER_PORT", "23456"},
                                                      {"RANK", "0"},
                                                      {"WORLD_SIZE", "1"},
                                                      {"MASTER_ADDR", "job-master-0"},
                                                      {"MASTER_PORT", "23456"}})
                                          .spec({"w"});
  CHECK(spec.hosts.size() == 1);
  CHECK(spec.launcher == LauncherKind::kLocal);
  CHECK(spec.master_port == 23456);
  CHECK(with_variables({{"PET_NNODES", "1"}, {"PET_NODE_RANK", "1"}, {"PET_MASTER_ADDR", "a"}})
            .errors({"w"})
            .size() == 2);
  CHECK(with_variables({{"PET_MASTER_ADDR", "a"}}).errors({"w"}).back() ==
        "ddplaunch: options taken from the environment, as torchrun takes them: PET_MASTER_ADDR");
}

TEST_CASE("A wrong value of a torchrun variable is reported with its origin") {
  CHECK(
      with_variables({{"PET_STANDALONE", "yes"}}).errors({"w"}) ==
      Texts{
          "ddplaunch: PET_STANDALONE=yes: give 1 for --standalone, or 0; torchrun expects a number as well"});
  CHECK(with_variables({{"PET_NPROC_PER_NODE", "many"}}).errors({"w"}) ==
        Texts{"ddplaunch: --nproc-per-node many: give a whole number from 1 to 65535, or auto, gpu or cpu",
              "ddplaunch: options taken from the environment, as torchrun takes them: PET_NPROC_PER_NODE"});
  // Kubeflow's trainer sets these variables for one torchrun in each pod.
  const Texts pods =
      with_variables({{"PET_NNODES", "4"}, {"PET_NODE_RANK", "1"}, {"PET_NPROC_PER_NODE", "1"}})
          .errors({"w"});
  REQUIRE(pods.size() == 2);
  CHECK(pods[0] ==
        "ddplaunch: --node-rank 1 needs --master-addr ADDR, the address of node 0; or set MASTER_ADDR on all "
        "nodes");
  CHECK(pods[1].starts_with("ddplaunch: options taken from the environment"));
}
