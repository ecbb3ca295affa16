#include "apps/ddplaunch/foreign_options.h"

#include <algorithm>
#include <array>

namespace ddp {

namespace {

constexpr bool kValue = true;
constexpr bool kFlag = false;

constexpr std::array kForeign = {
    // Ours, in a later release: refused, but for a value that is what happens anyway.
    ForeignOption{"--spares", kValue, Standing::kLater, "0", ""},
    ForeignOption{"--node-rank", kValue, Standing::kLater, "0",
                  "one ddplaunch with a hostfile starts all nodes"},
    ForeignOption{"--master-addr", kValue, Standing::kLater, "127.0.0.1",
                  "one ddplaunch with a hostfile starts all nodes; --network chooses the address"},
    ForeignOption{"--token-file", kValue, Standing::kLater, "", ""},
    ForeignOption{"--insecure", kFlag, Standing::kLater, "", ""},
    ForeignOption{"--store-allow", kValue, Standing::kLater, "", ""},
    ForeignOption{"--scale-up", kFlag, Standing::kLater, "", ""},
    ForeignOption{"--on-peer-loss", kValue, Standing::kLater, "", ""},
    ForeignOption{"--collectives", kFlag, Standing::kLater, "", "it comes with the trainer's bench"},
    ForeignOption{"--detach", kFlag, Standing::kLater, "",
                  "nohup ddplaunch … & keeps a job alive after logout"},
    ForeignOption{"--dashboard", kFlag, Standing::kLater, "", ""},

    // torchrun's.
    ForeignOption{"--standalone", kFlag, Standing::kRenamed, "local", "--launcher"},
    ForeignOption{"--rdzv-id", kValue, Standing::kRenamed, "", "--job-id"},
    ForeignOption{"--shutdown-timeout", kValue, Standing::kRenamed, "", "--stop-grace"},
    ForeignOption{"--rdzv-backend", kValue, Standing::kNoted, "", "ddplaunch has one rendezvous of its own"},
    ForeignOption{"--rdzv-endpoint", kValue, Standing::kNoted, "",
                  "nodes join over the connection that starts them"},
    ForeignOption{"--rdzv-conf", kValue, Standing::kNoted, "",
                  "the one limit of the start is --start-timeout"},
    ForeignOption{"--monitor-interval", kValue, Standing::kNoted, "", "the end of a worker is seen at once"},
    ForeignOption{"--start-method", kValue, Standing::kNoted, "",
                  "workers are programs, never forked functions"},
    ForeignOption{"--run-path", kFlag, Standing::kNoted, "",
                  "a .py file always runs in a process of its own"},
    ForeignOption{"--signals-to-handle", kValue, Standing::kNoted, "",
                  "SIGINT, SIGTERM and SIGHUP stop the job"},
    ForeignOption{"--event-log-handler", kValue, Standing::kNoted, "", "there are no event plug-ins"},
    ForeignOption{"--role", kValue, Standing::kLater, "default", ""},
    ForeignOption{"--local-addr", kValue, Standing::kRefused, "",
                  "use --network CIDR|IFACE, or address= in the hostfile"},
    ForeignOption{
        "--virtual-local-rank", kFlag, Standing::kRefused, "",
        "LOCAL_RANK stays the index into CUDA_VISIBLE_DEVICES, which gpus= in the hostfile chooses"},
    ForeignOption{"--numa-binding", kValue, Standing::kRefused, "",
                  "bind in the worker's command: numactl -N 0 python …"},
    ForeignOption{"--logs-specs", kValue, Standing::kRefused, "",
                  "there are no log plug-ins; files are in --job-dir"},
    ForeignOption{"--duplicate-stdout-filters", kValue, Standing::kRefused, "",
                  "pipe the output through grep"},
    ForeignOption{"--duplicate-stderr-filters", kValue, Standing::kRefused, "",
                  "pipe the output through grep"},
    ForeignOption{"--log-line-prefix-template", kValue, Standing::kRefused, "",
                  "use --label '[{host}:{rank}] '"},
    ForeignOption{"--print-completion", kValue, Standing::kRefused, "", "--help lists all options"},

    // DeepSpeed's and mpirun's, where people come from.
    ForeignOption{"--num-nodes", kValue, Standing::kRenamed, "", "--nnodes"},
    ForeignOption{"--num-gpus", kValue, Standing::kRenamed, "", "--nproc-per-node"},
    ForeignOption{"--num-accelerators", kValue, Standing::kRenamed, "", "--nproc-per-node"},
    ForeignOption{"--no-ssh", kFlag, Standing::kRefused, "",
                  "one ddplaunch per node is not in this release yet"},
    ForeignOption{"--launcher-args", kValue, Standing::kRefused, "", "use --ssh-config or --ssh-command"},
    ForeignOption{"--ssh-port", kValue, Standing::kRefused, "",
                  "use port= in the hostfile, or Port in --ssh-config"},
    ForeignOption{"-i", kValue, Standing::kRenamed, "", "--include"},
    ForeignOption{"-e", kValue, Standing::kRenamed, "", "--exclude"},
    ForeignOption{"--enable-each-rank-log", kValue, Standing::kRenamed, "", "--log-dir"},
    ForeignOption{"--no-local-rank", kFlag, Standing::kNoted, "",
                  "LOCAL_RANK is in the environment, and never an argument"},
    ForeignOption{"--no-ssh-check", kFlag, Standing::kNoted, "",
                  "there is no check besides the start itself"},
    ForeignOption{"--force-multi", kFlag, Standing::kNoted, "",
                  "hosts are reached over SSH however many they are; localhost with --ssh-localhost"},
    ForeignOption{"--save-pid", kFlag, Standing::kNoted, "", "ddplaunch.log in --job-dir has all pids"},
    ForeignOption{"--log-level", kValue, Standing::kNoted, "", "--verbose and --quiet choose"},
    ForeignOption{"-q", kFlag, Standing::kRefused, "", "use --quiet"},
    ForeignOption{"--venv-script", kValue, Standing::kRefused, "", "use --setup '. FILE'"},
    ForeignOption{"--bind-cores-to-rank", kFlag, Standing::kRefused, "",
                  "bind in the worker's command: numactl -N 0 python …"},
    ForeignOption{"--bind-core-list", kValue, Standing::kRefused, "",
                  "bind in the worker's command: numactl -C 0-7 python …"},
    ForeignOption{"--autotuning", kValue, Standing::kRefused, "",
                  "run DeepSpeed's autotuner with its own launcher"},
    ForeignOption{"--elastic-training", kFlag, Standing::kLater, "", ""},
    ForeignOption{"--min-elastic-nodes", kValue, Standing::kLater, "", ""},
    ForeignOption{"--max-elastic-nodes", kValue, Standing::kLater, "", ""},

    // accelerate launch's.
    ForeignOption{"--config-file", kValue, Standing::kRenamed, "", "--accelerate-config"},
    ForeignOption{"--num-machines", kValue, Standing::kRenamed, "", "--nnodes"},
    ForeignOption{"--main-process-port", kValue, Standing::kRenamed, "", "--master-port"},
    ForeignOption{"--num-processes", kValue, Standing::kRefused, "",
                  "it is a total; use --nproc-per-node, the workers on each node"},
    ForeignOption{"--machine-rank", kValue, Standing::kLater, "0",
                  "one ddplaunch with a hostfile starts all nodes"},
    ForeignOption{"--main-process-ip", kValue, Standing::kNoted, "",
                  "ranks meet at node 0's address on the network that all share (--network)"},
    ForeignOption{"--multi-gpu", kFlag, Standing::kNoted, "", "--nproc-per-node says how many"},
    ForeignOption{"--gpu-ids", kValue, Standing::kRefused, "", "use gpus= in the hostfile"},
    ForeignOption{"--mixed-precision", kValue, Standing::kRefused, "",
                  "use --env ACCELERATE_MIXED_PRECISION=bf16, or --accelerate-config"},
    ForeignOption{"--use-deepspeed", kFlag, Standing::kRefused, "",
                  "use --accelerate-config FILE, or --env ACCELERATE_USE_DEEPSPEED=true"},
    ForeignOption{"--use-fsdp", kFlag, Standing::kRefused, "",
                  "use --accelerate-config FILE, or --env ACCELERATE_USE_FSDP=true"},
    ForeignOption{"--dynamo-backend", kValue, Standing::kRefused, "",
                  "use --env ACCELERATE_DYNAMO_BACKEND=INDUCTOR, or --accelerate-config"},

    // mpirun's and srun's.
    ForeignOption{"-n", kValue, Standing::kRefused, "", "use --nproc-per-node, the workers on each node"},
    ForeignOption{"-np", kValue, Standing::kRefused, "", "use --nproc-per-node, the workers on each node"},
    ForeignOption{"-N", kValue, Standing::kRefused, "", "use --nproc-per-node"},
    ForeignOption{"-H", kValue, Standing::kRefused, "", "use --hostfile FILE or --host LIST"},
    ForeignOption{"-ppn", kValue, Standing::kRenamed, "", "--nproc-per-node"},
    ForeignOption{"--npernode", kValue, Standing::kRenamed, "", "--nproc-per-node"},
    ForeignOption{"--ntasks-per-node", kValue, Standing::kRenamed, "", "--nproc-per-node"},
    ForeignOption{"--ntasks", kValue, Standing::kRefused, "",
                  "use --nproc-per-node, the workers on each node"},
    ForeignOption{"--nodes", kValue, Standing::kRenamed, "", "--nnodes"},
    ForeignOption{"--nodelist", kValue, Standing::kRenamed, "", "--host"},
    ForeignOption{"-w", kValue, Standing::kRefused, "", "use --host LIST"},
    ForeignOption{"--export", kValue, Standing::kRefused, "",
                  "use --env NAME[=VALUE]; most of the environment goes along anyway"},
    ForeignOption{"--wdir", kValue, Standing::kRenamed, "", "--chdir"},
    ForeignOption{"--allow-run-as-root", kFlag, Standing::kNoted, "", "root may run jobs"},
    ForeignOption{"--bind-to", kValue, Standing::kRefused, "",
                  "bind in the worker's command: numactl -N 0 python …"},
    ForeignOption{"--map-by", kValue, Standing::kRefused, "", "ranks follow the order of the hosts"},
    ForeignOption{"--mca", kValue, Standing::kRefused, "", "there is no MPI in ddplaunch"},
    ForeignOption{"-x", kValue, Standing::kRefused, "", "use --env NAME[=VALUE]"},
};

}  // namespace

std::span<const ForeignOption> foreign_options() {
  return kForeign;
}

const ForeignOption* find_foreign(std::string_view name) {
  const auto found = std::find_if(kForeign.begin(), kForeign.end(),
                                  [&](const ForeignOption& row) { return row.name == name; });
  return found == kForeign.end() ? nullptr : &*found;
}

}  // namespace ddp
