#include "launcher/merged_output.h"

#include <utility>

namespace ddp::launcher {

struct MergedOutput::Rank {
  Rank(std::string out_label, std::string err_label) : out(std::move(out_label)), err(std::move(err_label)) {}
  LineAssembler out;
  LineAssembler err;
  StderrTail tail;
  bool wrote_stderr = false;
  int local_rank = 0;
};

MergedOutput::MergedOutput(JobWriter& files, Console& console, std::string label, Source source)
    : files_(files), console_(console), label_(std::move(label)), source_(std::move(source)) {}

MergedOutput::~MergedOutput() = default;

MergedOutput::Rank& MergedOutput::rank_state(std::uint32_t rank) {
  if (rank >= ranks_.size()) ranks_.resize(rank + 1);
  if (!ranks_[rank]) {
    LineSource source = source_(rank);
    source.stream = "stdout";
    std::string out = make_label(label_, source);
    source.stream = "stderr";
    ranks_[rank] = std::make_unique<Rank>(std::move(out), make_label(label_, source));
    ranks_[rank]->local_rank = source.local_rank;
  }
  return *ranks_[rank];
}

void MergedOutput::take(std::uint32_t attempt, std::uint32_t rank, std::uint8_t stream,
                        std::string_view bytes) {
  Rank& state = rank_state(rank);
  LineAssembler& assembler = stream == 1 ? state.out : state.err;
  lines_.clear();
  if (bytes.empty()) {
    assembler.finish(lines_);
  } else {
    files_.append({attempt, rank, state.local_rank, stream}, bytes);
    if (stream == 2) {
      state.tail.add(bytes);
      state.wrote_stderr = true;
    }
    assembler.add(bytes, lines_);
  }
  console_.write(stream == 1 ? 1 : 2, lines_);
}

void MergedOutput::finish_all() {
  for (const auto& rank : ranks_) {
    if (!rank) continue;
    lines_.clear();
    rank->out.finish(lines_);
    console_.write(1, lines_);
    lines_.clear();
    rank->err.finish(lines_);
    console_.write(2, lines_);
  }
}

std::vector<std::string> MergedOutput::last_stderr(std::uint32_t rank) const {
  return rank < ranks_.size() && ranks_[rank] ? ranks_[rank]->tail.lines() : std::vector<std::string>();
}

std::string MergedOutput::stderr_file(std::uint32_t attempt, std::uint32_t rank) const {
  const bool wrote = rank < ranks_.size() && ranks_[rank] && ranks_[rank]->wrote_stderr;
  return wrote ? files_.file(attempt, rank, 2) : std::string();
}

}  // namespace ddp::launcher
