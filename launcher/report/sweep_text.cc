#include "launcher/report/sweep_text.h"

#include <algorithm>

#include "base/text.h"

namespace ddp::launcher {
namespace {

constexpr std::size_t kNamed = 4;  ///< processes

}  // namespace

std::string swept_text(std::size_t found, const std::vector<std::string>& left, const std::string& job_id) {
  if (left.empty() && found == 0) return "nothing of the job was left there";
  if (left.empty())
    return counted(found, "process of the job was", "processes of the job were") + " left there, and ended";
  std::string text =
      counted(left.size(), "process of the job may live", "processes of the job may live") + " there: ";
  for (std::size_t i = 0; i < std::min(left.size(), kNamed); ++i)
    text += (i == 0 ? "" : ", ") + one_line(left[i]);
  if (left.size() > kNamed) text += " and " + std::to_string(left.size() - kNamed) + " more";
  return text + "; run `ddplaunch clean " + job_id +
         "` when the job has ended, and end there what that leaves";
}

std::string not_swept_text(const std::string& why, const std::string& job_id, bool reachable) {
  const std::string command = reachable ? "run `ddplaunch clean " + job_id + "` when the job has ended"
                                        : "run there `grep -lz DDPLAUNCH_JOB_ID=" + job_id +
                                              " /proc/[0-9]*/environ`, which names them";
  return "its processes may live, since nobody could search there (" + one_line(why) + "); " + command;
}

}  // namespace ddp::launcher
