#include "apps/train/lr_schedule.h"

#include "tests/unit/train/approx.h"

using namespace ddp::train;

TEST_CASE("the learning rate rises, stays, or falls along a cosine") {
  const LrSchedule plain{LrShape::kConstant, 0.5, 0};
  CHECK(plain.rate(0, 0) == 0.5);
  CHECK(plain.rate(1000, 1) == 0.5);

  const LrSchedule warm{LrShape::kConstant, 0.5, 4};
  CHECK(warm.rate(0, 0) == Approx(0.125));
  CHECK(warm.rate(3, 0.1) == Approx(0.5));
  CHECK(warm.rate(4, 0.1) == Approx(0.5));

  const LrSchedule cosine{LrShape::kCosine, 0.2, 2};
  CHECK(cosine.rate(0, 0) == Approx(0.1));
  CHECK(cosine.rate(50, 0.5) == Approx(0.1));
  CHECK(cosine.rate(75, 0.75) == Approx(0.2 * 0.146446609).epsilon(1e-7));
  CHECK(cosine.rate(99, 1) == Approx(0).margin(1e-12));
  CHECK(cosine.rate(99, 1.5) == Approx(0).margin(1e-12));
}
