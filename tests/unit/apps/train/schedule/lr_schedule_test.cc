#include "apps/train/schedule/schedule.h"

#include <iterator>

#include "tests/unit/apps/train/model/approx.h"

using namespace ddp::train;

TEST_CASE("the learning rate rises, stays constant, or falls along a cosine") {
  const LrSchedule plain{LrShape::kConstant, 0.5, 0};
  CHECK(plain.rate(0, 0, 0) == 0.5);
  CHECK(plain.rate(1000, 1, 0) == 0.5);

  const LrSchedule warm{LrShape::kConstant, 0.5, 4};
  CHECK(warm.rate(0, 0, 0) == Approx(0.125));
  CHECK(warm.rate(3, 0.1, 0) == Approx(0.5));
  CHECK(warm.rate(4, 0.1, 0.1) == Approx(0.5));

  const LrSchedule cosine{LrShape::kCosine, 0.2, 0};
  CHECK(cosine.rate(0, 0, 0) == 0.2);
  CHECK(cosine.rate(50, 0.5, 0) == Approx(0.1));
  CHECK(cosine.rate(75, 0.75, 0) == Approx(0.2 * 0.146446609).epsilon(1e-7));
  CHECK(cosine.rate(99, 1, 0) == Approx(0).margin(1e-12));
  CHECK(cosine.rate(99, 1.5, 0) == Approx(0).margin(1e-12));
}

TEST_CASE("warm-up and cosine equal PyTorch's SequentialLR and reach the peak") {
  // torch 1.13: SequentialLR([LinearLR(start_factor=1/4, total_iters=3), CosineAnnealingLR(T_max=8)],
  // milestones=[4])
  const double torch[] = {0.050000000000000003, 0.10000000000000001,  0.15000000000000002,
                          0.20000000000000001,  0.20000000000000001,  0.19238795325112867,
                          0.17071067811865476,  0.13826834323650899,  0.10000000000000001,
                          0.06173165676349103,  0.029289321881345254, 0.0076120467488713268};
  const LrSchedule schedule{LrShape::kCosine, 0.2, 4};
  for (int step = 0; step < static_cast<int>(std::size(torch)); ++step) {
    INFO("step " << step);
    CHECK(schedule.rate(step, step / 12.0, 4 / 12.0) == Approx(torch[step]).epsilon(1e-14).margin(1e-16));
  }
  // A warm-up as long as the training leaves no cosine.
  CHECK(schedule.rate(4, 1, 1) == Approx(0).margin(1e-12));
}
