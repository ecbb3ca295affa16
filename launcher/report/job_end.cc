#include "launcher/report/job_end.h"

namespace ddp::launcher {

void JobEnd::add_evidence(int rank, std::uint32_t attempt, const rendezvous::WorkerEvidence& evidence) {
  for (std::vector<Failure>* list : {&failures, &earlier}) {
    for (Failure& failure : *list) {
      if (!failure.of_worker() || failure.rank != rank || failure.attempt != attempt) continue;
      failure.evidence.oom = evidence.oom;
      failure.evidence.xid = evidence.xid;
      failure.evidence.exception = parse_error_json(evidence.error_json);
      return;
    }
  }
}

}  // namespace ddp::launcher
