#include <string>

#include "apps/ddplaunch/options/job_options.h"
#include "launcher/lines/label.h"

namespace ddp {

namespace {

using launcher::Bars;
using launcher::ConsolePolicy;
using launcher::OutputOptions;

constexpr char kStreamsAdvice[] =
    ": give 0 (none), 1 (stdout), 2 (stderr) or 3 (both), or local ranks with them: 0:3,1:2";

void add_shown(OptionTable& table, OutputOptions& output) {
  table.group("Output", "[output.md](output.md) explains these options.",
              "ddplaunch --label '{time} {host} {rank}| ' --fold python train.py");
  table.value(
      {.names = "--label",
       .value = "TEMPLATE",
       .default_text = "'[{host}:{rank}] '",
       .help = "prefix of each line; also {local_rank} {node_rank} {stream} {time}; none for no label",
       .details = "`{{` and `}}` stand for braces. An empty template is no label, too.",
       .takes_empty = true},
      text_into(output.label));
  table.value({.names = "--show-ranks",
               .value = "LIST",
               .default_text = "all",
               .help = "show only these ranks: 0,8-15; the files have all",
               .completion = Completion::kRank},
              parsed_into(output.show_ranks, read_rank_ranges, ": give ranks like 0,8-15, or all"));
  table.value({.names = "--local-ranks-filter",
               .value = "LIST",
               .default_text = "all",
               .help = "show only these local ranks of each node: 0,1",
               .completion = Completion::kRank},
              parsed_into(output.local_ranks_filter, read_local_ranks, ": give local ranks like 0,1 or 0-3"));
  table.choice<Bars>(
      {.names = "--bars",
       .default_text = "rank0, with the spread of all",
       .help = "ranks whose progress bars are shown"},
      output.bars,
      {{"rank0", Bars::kRank0}, {"node", Bars::kNode}, {"all", Bars::kAll}, {"off", Bars::kOff}});
  table.flag({.names = "--fold",
              .help = "show equal lines of several ranks once: [*:0-63]",
              .details = "Lines count as equal if the ranks print them within 100 ms."},
             output.fold);
  table.choice<ConsolePolicy>(
      {.names = "--console",
       .default_text = "auto, which drops on a terminal",
       .help = "policy for a slow reader of the output: block slows the workers, drop omits and counts lines",
       .details = "`auto` blocks on a pipe. The files have all lines."},
      output.console,
      {{"auto", ConsolePolicy::kAuto}, {"block", ConsolePolicy::kBlock}, {"drop", ConsolePolicy::kDrop}});
}

void add_files(OptionTable& table, launcher::JobSpec& spec, const std::string& cwd) {
  OutputOptions& output = spec.output;
  table.value({.names = "--log-dir",
               .value = "DIR",
               .help = "directory for copies of the output: DIR/JOB_ID/attempt_0/RANK/stdout.log, stderr.log",
               .details = "It gets all streams, unless `--tee` or `--redirects` select some."},
              path_into(output.log_dir, cwd));
  table.value(
      {.names = "-t,--tee",
       .value = "STREAMS",
       .default_text = "0",
       .help = "streams that go to --log-dir and are shown: 0 none, 1 stdout, 2 stderr, 3 both; or by "
               "local rank: 0:3,1:2"},
      parsed_into(output.tee, read_stream_choice, kStreamsAdvice));
  table.value({.names = "-r,--redirects",
               .value = "STREAMS",
               .default_text = "0",
               .help = "like --tee, but the streams are not shown",
               .details = "The job's directory has them in any case."},
              parsed_into(output.redirects, read_stream_choice, kStreamsAdvice));
  table.value({.names = "--log-max-size",
               .value = "SIZE[:PARTS]",
               .default_text = "0, one part",
               .help = "start a new part of an output file at this size: NAME, NAME.1, …; keep all parts, or "
                       "the newest PARTS",
               .details = "At least `4K`; `0` is no limit. `64M:4` keeps the newest four parts."},
              log_limit_into(output));
  table.flag({.names = "--jsonl",
              .help = "also keep the lines as JSON: attempt_0/lines.jsonl in the job's directory"},
             output.jsonl);
  table.flag({.names = "--quiet", .help = "print only the workers' lines and errors"}, spec.quiet);
  table.flag({.names = "-v,--verbose", .help = "report each step"}, spec.verbose);
}

/// `workers` is the number per node; 0: unknown.
void check_streams(const launcher::StreamChoice& choice, const char* option, int workers,
                   Diagnostics& diagnostics) {
  if (workers == 0 || choice.by_local.empty() || choice.by_local.rbegin()->first < workers) return;
  diagnostics.fail(std::string(option) + ": there is no local rank " +
                   std::to_string(choice.by_local.rbegin()->first) + " with --nproc-per-node " +
                   std::to_string(workers));
}

}  // namespace

void add_output_options(JobOptions& options, const std::string& cwd) {
  add_shown(options.table, options.job.spec.output);
  add_files(options.table, options.job.spec, cwd);
}

void check_output_options(JobOptions& options, Diagnostics& diagnostics) {
  const launcher::JobSpec& spec = options.job.spec;
  if (spec.quiet && spec.verbose) diagnostics.fail("--quiet and --verbose contradict each other");
  OutputOptions& output = options.job.spec.output;
  output.label_on = !output.label.empty() && output.label != "none";
  if (output.label_on) {
    if (const auto checked = launcher::check_label_template(output.label); !checked)
      diagnostics.fail(checked.error().text);
  }
  const bool fixed = spec.nproc.kind == launcher::ProcsPerNode::Kind::kNumber;
  check_streams(output.tee, "--tee", fixed ? spec.nproc.number : 0, diagnostics);
  check_streams(output.redirects, "--redirects", fixed ? spec.nproc.number : 0, diagnostics);
}

}  // namespace ddp
