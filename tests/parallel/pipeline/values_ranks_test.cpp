// Pointers to, and words about, values that are cut or on a stage: refused with the remedy, and described without a
// message.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <sstream>

#include "hasten/comm/mesh/device_mesh.h"
#include "hasten/parallel/context/context_parallel.h"
#include "hasten/parallel/pipeline/pipeline.h"
#include "hasten/parallel/tensor/tensor_parallel.h"
#include "support/ranks.h"

namespace hasten::parallel {
namespace {

using namespace hasten::testing;
using ::testing::HasSubstr;

// On this rank alone, so a message would wait for ever.
void expect_refused(const at::Tensor& value, const std::string& words) {
  const auto refused = ::testing::ThrowsMessage<std::exception>(HasSubstr(words));
  const auto read_pointer = [&] { (void)value.const_data_ptr<float>(); };
  const auto write_pointer = [&] { (void)value.mutable_data_ptr(); };
  const auto read_elements = [&] { (void)(value.accessor<float, 2>()); };
  EXPECT_THAT(read_pointer, refused);
  EXPECT_THAT(write_pointer, refused);
  EXPECT_THAT(read_elements, refused);
}

TEST(CutValues, RefusePointersByTheNameOfTheirAxis) {
  run_ranks(2, [](process::Process& process) {
    torch::nn::Linear net(4, 6);
    const TensorParallel cut(*net, process.group(), {.plan = {{"weight", "colwise"}, {"bias", "colwise"}}});
    const ContextParallel context(process.group());
    const at::Tensor over_tp = net(at::ones({2, 4})), over_cp = context.cut(at::ones({2, 4}), 1);
    if (process.rank() == 0) {
      expect_refused(over_tp,
                     "A value that is cut over tp has no memory of its own. Use parallel::local_value(x) for this "
                     "rank's part, or parallel::whole_value(x) on all ranks.");
      expect_refused(over_cp, "cut over cp");
      const at::Tensor own = local_value(over_tp);
      EXPECT_EQ((own.accessor<float, 2>().size(1)), 3);
    }
  });
}

// Sums over the cut dimension are whole values.
TEST(CutValues, SumsOverTheCutDimensionHaveMemory) {
  run_ranks(2, [](process::Process& process) {
    torch::nn::Sequential net(torch::nn::Linear(4, 6), torch::nn::Linear(6, 3));
    const TensorParallel cut(*net, process.group(), {.plan = {{"0", "colwise"}, {"1", "rowwise"}}});
    const at::Tensor hidden = net[0]->as<torch::nn::LinearImpl>()->forward(at::ones({2, 4}));
    const at::Tensor sum = hidden.sum(-1), product = net->forward(at::ones({2, 4}));
    EXPECT_TRUE(is_cut_value(hidden));
    const at::Tensor whole = whole_value(hidden).sum(-1);
    EXPECT_NEAR(sum.const_data_ptr<float>()[1], whole.const_data_ptr<float>()[1], 1e-5);
    EXPECT_EQ((product.accessor<float, 2>().size(1)), 3);
  });
}

TEST(CutValues, ArePrintedByTheirSizesAndCutsWithoutAMessage) {
  run_ranks(2, [](process::Process& process) {
    torch::nn::Linear net(4, 6);
    const TensorParallel cut(*net, process.group(), {.plan = {{"weight", "colwise"}, {"bias", "colwise"}}});
    const at::Tensor value = net(at::ones({2, 4}));
    if (process.rank() != 0) return;
    EXPECT_EQ(describe_value(value), "[2, 6] Float, cut over tp (dim 1), part 0 of 2 is [2, 3]");
    EXPECT_EQ(describe_value(at::ones({2}, at::kLong)), "[2] Long");
    EXPECT_EQ(describe_value(at::Tensor()), "undefined");
    const auto print = [&] { std::ostringstream() << value; };
    EXPECT_THAT(print, ::testing::ThrowsMessage<std::exception>(HasSubstr("parallel::whole_value(x) on all ranks")));
  });
}

// A branch of the program that differs by rank: both calls are named, and nothing waits for ever.
TEST(CutValues, OfRanksThatPartNameBothCalls) {
  const auto words = run_ranks_collecting(2, [](process::Process& process) {
    torch::nn::Linear net(4, 6);
    const TensorParallel cut(*net, process.group(), {.plan = {{"weight", "colwise"}, {"bias", "colwise"}}});
    const at::Tensor value = net(at::ones({2, 4}));
    (void)(process.rank() == 0 ? value.sum(1) : whole_value(value));
  });
  EXPECT_THAT(words, ::testing::Each(::testing::AllOf(HasSubstr("disagree: rank 0 calls all_reduce"),
                                                      HasSubstr("rank 1 calls all_gather"))));
}

TEST(StagedValues, RefusePointersOnAllRanksAndAreDescribed) {
  run_ranks(2, [](process::Process& process) {
    torch::nn::Sequential net(torch::nn::Linear(4, 4), torch::nn::Linear(4, 4));
    const Pipeline pipeline(*net, process.group(), {.microbatches = 1});
    pipeline.forward_backward(at::ones({2, 4}), [&](const at::Tensor& x) {
      const at::Tensor first = net[0]->as<torch::nn::LinearImpl>()->forward(x);
      const at::Tensor second = net[1]->as<torch::nn::LinearImpl>()->forward(first);
      for (const at::Tensor& value : {first, second}) {
        expect_refused(value, "A value on a stage of a pipeline has no memory of its own. Use item()");
      }
      EXPECT_EQ(describe_value(first), "[2, 4] Float, on stage 0 of 2 (rank 0 of pp)");
      EXPECT_EQ(describe_value(second), "[2, 4] Float, on stage 1 of 2 (rank 1 of pp)");
      const auto print = [&] { std::ostringstream() << second; };
      EXPECT_THAT(print, ::testing::ThrowsMessage<std::exception>(HasSubstr("value_everywhere(x)")));
      return second.sum();
    });
  });
}

TEST(StagedValues, ThatAreCutSayBoth) {
  run_ranks(4, [](process::Process& process) {
    const comm::DeviceMesh mesh(process.group(), {{"pp", 2}, {"tp", 2}});
    for (const char* axis : {"pp", "tp"}) mesh.group(axis).connect_backends();
    torch::nn::Sequential net(torch::nn::Linear(4, 4), torch::nn::Linear(4, 4));
    const TensorParallel cut(*net, mesh.group("tp"), {.plan = {{"0", "colwise"}, {"1", "rowwise"}}});
    const Pipeline pipeline(*net, mesh.group("pp"), {.microbatches = 1});
    pipeline.forward_backward(at::ones({2, 4}), [&](const at::Tensor& x) {
      const at::Tensor first = net[0]->as<torch::nn::LinearImpl>()->forward(x);
      const std::string words = describe_value(first);
      const bool is_here = mesh.coordinate("pp") == 0;
      EXPECT_THAT(words, HasSubstr("on stage 0 of 2"));
      EXPECT_EQ(words.find("cut over tp (dim 1), part ") != std::string::npos, is_here) << words;
      return net[1]->as<torch::nn::LinearImpl>()->forward(first).sum();
    });
  });
}

}  // namespace
}  // namespace hasten::parallel
