#include "launcher/links/join_table.h"

#include "tests/support/catch.h"

namespace ddp::launcher {
namespace {

using namespace std::chrono_literals;
using rendezvous::LinkAnswer;
using rendezvous::LinkRefusal;
using Time = JoinTable::Time;

/// A job of four nodes and its clock.
struct Job {
  JoinTable table{{4, 1, "0.1.0", "run7"}};
  Time now{100s};
  Time heard{};  ///< all links
  const JoinTable::LastHeard last_heard = [this](int) { return heard; };

  JoinTable::Decision join(std::optional<int> rank, const std::string& name,
                           const std::string& address = "10.0.0.9") {
    return table.join({1, "0.1.0", rank, 4}, {name, address}, now, last_heard);
  }
  /// Returns the rank, or the refusal's text.
  std::string slot(std::optional<int> rank, const std::string& name,
                   const std::string& address = "10.0.0.9") {
    const LinkAnswer answer = join(rank, name, address).answer;
    return answer.rank ? std::to_string(*answer.rank) : answer.text;
  }
};

TEST_CASE("a node gets the rank that it asks for") {
  Job job;
  CHECK(job.slot(3, "gpu03") == "3");
  CHECK(job.slot(1, "gpu01") == "1");
  CHECK(job.join(2, "gpu02").answer.job_id == "run7");
}

TEST_CASE("nodes without a rank get the free ones in order of arrival") {
  Job job;
  CHECK(job.slot(2, "gpu07") == "2");
  CHECK(job.slot({}, "gpu05") == "1");
  CHECK(job.slot({}, "gpu06") == "3");
  CHECK(job.slot({}, "gpu08") ==
        "all 4 nodes of the job have joined already; start no more than --nnodes says");
}

TEST_CASE("a machine that returns gets its previous rank") {
  Job job;
  const auto one = job.join({}, "gpu05");
  const auto two = job.join({}, "gpu06");
  job.table.ended(*one.answer.rank, one.incarnation);
  job.table.ended(*two.answer.rank, two.incarnation);
  CHECK(job.slot({}, "gpu06") == "2");
  CHECK(job.slot({}, "gpu05") == "1");
}

TEST_CASE("a new machine gets an unused rank before one that another left") {
  Job job;
  const auto one = job.join({}, "gpu05");
  job.table.ended(*one.answer.rank, one.incarnation);
  CHECK(job.slot({}, "gpu06") == "2");
  CHECK(job.slot({}, "gpu07") == "3");
  CHECK(job.slot({}, "gpu08") == "1");
}

TEST_CASE("the rank of a connected node is not given away") {
  Job job;
  const auto first = job.join(3, "gpu03", "10.0.0.7");
  job.table.opened(3, job.now);
  job.now += 60s;
  job.heard = job.now - 1s;
  const auto second = job.join(3, "gpu04", "10.0.0.8");
  CHECK(!second.answer.rank);
  CHECK(second.answer.refusal == LinkRefusal::kTaken);
  CHECK(second.answer.text ==
        "node rank 3 has already joined, from 10.0.0.7; give each node its own --node-rank");
  CHECK(first.answer.rank == 3);
}

TEST_CASE("a silent node is replaced by a node that answers") {
  Job job;
  job.join(3, "gpu03");
  job.table.opened(3, job.now);
  job.now += 10s;
  job.heard = job.now - 3s;
  const auto second = job.join(3, "gpu03");
  CHECK(second.answer.rank == 3);
  CHECK(second.displaces);
}

TEST_CASE("a waiting node is replaced by its own machine only") {
  Job job;
  job.join(3, "gpu03");
  CHECK(job.join(3, "gpu04").answer.refusal == LinkRefusal::kTaken);
  const auto again = job.join(3, "gpu03");
  CHECK(again.answer.rank == 3);
  CHECK(again.displaces);
}

TEST_CASE("several nodes of one machine wait beside each other") {
  Job job;
  CHECK(job.slot({}, "here") == "1");
  CHECK(job.slot({}, "here") == "2");
  CHECK(job.slot({}, "here") == "3");
}

TEST_CASE("the end of an earlier link does not free the rank of a later one") {
  Job job;
  const auto first = job.join(1, "gpu01");
  CHECK(job.table.is_latest(1, first.incarnation));
  const auto second = job.join(1, "gpu01");
  CHECK_FALSE(job.table.is_latest(1, first.incarnation));
  job.table.ended(1, first.incarnation);
  CHECK(job.join(1, "gpu02").answer.refusal == LinkRefusal::kTaken);
  job.table.ended(1, second.incarnation);
  const auto third = job.join(1, "gpu02");
  CHECK(third.answer.rank == 1);
  CHECK(!third.displaces);
}

TEST_CASE("an impossible request is refused with the remedy") {
  Job job;
  CHECK(job.slot(0, "gpu00") == "node rank 0 is the master's own node; give each node its own --node-rank");
  CHECK(job.slot(4, "gpu04") == "node rank 4 is not one of 0 … 3; the job has 4 nodes");
  const auto size = job.table.join({1, "0.1.0", 1, 2}, {"gpu01", "10.0.0.1"}, job.now, job.last_heard).answer;
  CHECK(size.refusal == LinkRefusal::kOtherSize);
  CHECK(size.text ==
        "the job has 4 nodes according to its master, but 2 according to this node; use the same --nnodes "
        "(and --spares) on all nodes");
  const auto version =
      job.table.join({1, "0.2.0", 1, 4}, {"gpu01", "10.0.0.1"}, job.now, job.last_heard).answer;
  CHECK(version.refusal == LinkRefusal::kOtherVersion);
  CHECK(version.text ==
        "the master is ddplaunch 0.1.0 (protocol 1), this node's is 0.2.0 (protocol 1); install the same "
        "version on all nodes");
  CHECK(job.table.join({1, "0.1.0", 1, 0}, {"gpu01", "10.0.0.1"}, job.now, job.last_heard).answer.rank == 1);
}

TEST_CASE("a node without a known name is called by its rank") {
  CHECK(join_host_name(3) == "node3");
  CHECK(join_host_rank("node3") == 3);
  CHECK(!join_host_rank("gpu3"));
  CHECK(!join_host_rank("nodeX"));
}

}  // namespace
}  // namespace ddp::launcher
