#include "hasten/comm/types/work.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>

namespace hasten::comm {
namespace {

class Switch : public detail::Operation {
 public:
  bool done() override { return is_done; }
  void wait() override { is_done = true; }
  bool is_done = false;

 protected:
  void on_abandon(std::shared_ptr<Operation>) noexcept override {}
};

TEST(Work, ThenGivesTheSameOperationWithMoreAtItsEnd) {
  const auto operation = std::make_shared<Switch>();
  std::string said;
  Work<> first(operation, [&] { said += "first "; });

  Work<int> both = std::move(first).then([&] {
    said += "then";
    return 7;
  });

  EXPECT_FALSE(both.done());
  EXPECT_TRUE(said.empty());
  EXPECT_EQ(both.wait(), 7);
  EXPECT_EQ(said, "first then");
}

TEST(Work, ThenIsGivenTheResult) {
  Work<int> work([] { return 3; });

  EXPECT_EQ(std::move(work).then([](int result) { return result + 1; }).wait(), 4);
}

}  // namespace
}  // namespace hasten::comm
