// The rules of views, pieces and masks of cut values: what each rank computes of its part is the part of what one
// process computes, and so are gradients, in double precision. Some sizes no number of ranks divides, and some cuts are
// of blocks.
#include "parallel/tensor/rules.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <functional>
#include <string>
#include <vector>

#include "hasten/core/text.h"
#include "hasten/parallel/tensor/tensor_parallel.h"
#include "parallel/tensor/exchange.h"
#include "parallel/tensor/handler.h"
#include "support/ranks.h"

namespace hasten::parallel {
namespace {

using namespace hasten::testing;
using Operator = std::function<at::Tensor(const at::Tensor& x)>;

struct RuleCase {
  const char* name = "";
  Operator apply;
};

// Values that no two elements share.
at::Tensor uneven_values(at::IntArrayRef sizes, double start) {
  int64_t numel = 1;
  for (const int64_t size : sizes) numel *= size;
  return (at::arange(numel, at::kDouble) * 0.7 + start).sin().view(sizes);
}

// Rules over a value [4, 5, 6].
std::vector<RuleCase> shape_rules() {
  return {
      {"view of the first two",
       [](const at::Tensor& x) {
         return x.view({20, 6});
       }},
      {"view of the last two",
       [](const at::Tensor& x) {
         return x.view({4, 30});
       }},
      {"view of a divided dimension",
       [](const at::Tensor& x) {
         return x.view({2, 2, 5, 6});
       }},
      {"view of heads",
       [](const at::Tensor& x) {
         return x.view({4, 5, 2, 3});
       }},
      {"view of small heads",
       [](const at::Tensor& x) {
         return x.view({4, 5, 3, 2});
       }},
      {"reshape of a transposed value",
       [](const at::Tensor& x) {
         return x.transpose(0, 1).reshape({20, 6});
       }},
      {"transpose", [](const at::Tensor& x) { return x.transpose(1, -1); }},
      {"t", [](const at::Tensor& x) { return x.select(0, 1).t(); }},
      {"permute",
       [](const at::Tensor& x) {
         return x.permute({2, 0, -2});
       }},
      {"unsqueeze", [](const at::Tensor& x) { return x.unsqueeze(1); }},
      {"unsqueeze from the end", [](const at::Tensor& x) { return x.unsqueeze(-1); }},
      {"squeeze", [](const at::Tensor& x) { return x.unsqueeze(1).squeeze(1).squeeze(0); }},
      {"expand",
       [](const at::Tensor& x) {
         return x.unsqueeze(1).expand({-1, 3, -1, -1});
       }},
      {"expand by a dimension",
       [](const at::Tensor& x) {
         return x.expand({2, 4, 5, 6});
       }},
      {"select of the first", [](const at::Tensor& x) { return x.select(0, -1); }},
      {"select of the last", [](const at::Tensor& x) { return x.select(-1, 2); }},
      {"unbind", [](const at::Tensor& x) { return x.unbind(1)[3]; }},
      {"split", [](const at::Tensor& x) { return x.split(2, 1)[2]; }},
      {"split of the last", [](const at::Tensor& x) { return x.split(3, -1)[1]; }},
      {"split with sizes",
       [](const at::Tensor& x) {
         return x.split_with_sizes({1, 3}, 0)[1];
       }},
      {"split with sizes of blocks",
       [](const at::Tensor& x) {
         return x.split_with_sizes({3, 3}, 2)[1];
       }},
      {"chunk", [](const at::Tensor& x) { return x.chunk(2, 2)[1]; }},
      {"uneven chunks", [](const at::Tensor& x) { return x.chunk(2, 1)[0]; }},
      {"slice", [](const at::Tensor& x) { return x.slice(0, 1, -1); }},
      {"slice by steps", [](const at::Tensor& x) { return x.slice(2, 0, 6, 2); }},
      {"slice of a block", [](const at::Tensor& x) { return x.slice(2, 3); }},
      {"narrow", [](const at::Tensor& x) { return x.narrow(1, 2, 3); }},
      {"cat",
       [](const at::Tensor& x) {
         return at::cat({x, x * 2}, 1);
       }},
      {"cat along the last",
       [](const at::Tensor& x) {
         return at::cat({x, x * 2}, -1);
       }},
      {"cat with a whole value",
       [](const at::Tensor& x) {
         return at::cat({uneven_values({4, 5, 6}, 1), x}, 0);
       }},
      {"stack",
       [](const at::Tensor& x) {
         return at::stack({x, x * 2}, 1);
       }},
      {"stack at the end",
       [](const at::Tensor& x) {
         return at::stack({x, x * 2}, -1);
       }},
      {"repeat_interleave of the first", [](const at::Tensor& x) { return x.repeat_interleave(2, 0); }},
      {"repeat_interleave", [](const at::Tensor& x) { return x.repeat_interleave(2, 1); }},
      {"repeat_interleave of the last", [](const at::Tensor& x) { return x.repeat_interleave(3, 2); }},
      {"contiguous", [](const at::Tensor& x) { return x.transpose(0, 2).contiguous().clone(); }},
      {"to", [](const at::Tensor& x) { return x.to(at::kFloat).to(at::kDouble) * x; }},
  };
}

void expect_rule(process::Process& process, const RuleCase& rule, const Cut& cut) {
  const auto axis = tensor::make_axis(process.group(), {});
  const std::vector<int64_t> sizes = {4, 5, 6};
  const std::string words = text(rule.name, " of dim ", cut.dim, " in ", cut.blocks, " blocks, rank ", process.rank(),
                                 "/", process.world_size());
  const auto alone = uneven_values(sizes, 0).requires_grad_(), given = uneven_values(sizes, 0).requires_grad_();
  const int64_t size = sizes[static_cast<size_t>(cut.dim)];
  const at::Tensor expected = rule.apply(alone);
  const at::Tensor weight = uneven_values(expected.sizes(), 3);
  (expected * weight).sum().backward();

  const tensor::ForwardScope scope;
  const at::Tensor part = tensor::exchange(*axis, given, {tensor::ExchangeKind::kSlice, cut, size});
  const at::Tensor found = rule.apply(axis->wrap(part, cut, size));
  (found * weight).sum().backward();

  EXPECT_EQ(found.sizes(), expected.sizes()) << words;
  EXPECT_TRUE(at::allclose(whole_value(found.detach()), expected, 1e-10, 1e-12)) << words;
  EXPECT_TRUE(at::allclose(given.grad(), alone.grad(), 1e-10, 1e-12)) << words << ": gradients";
}

void expect_rules(const std::vector<RuleCase>& rules) {
  for (const int ranks : {2, 3, 4}) {
    run_ranks(ranks, [&](process::Process& process) {
      for (const Cut& cut : {Cut{0, 1}, Cut{1, 1}, Cut{2, 1}, Cut{2, 2}, Cut{0, 2}}) {
        for (const RuleCase& rule : rules) expect_rule(process, rule, cut);
      }
    });
  }
}

TEST(TensorRules, OfShapesHaveTheValuesAndGradientsOfOneProcess) {
  expect_rules(shape_rules());
}

TEST(TensorRules, AreNoneForPointersWhichAreRefusedWithTheRemedy) {
  run_ranks(2, [](process::Process& process) {
    const auto axis = tensor::make_axis(process.group(), {});
    const at::Tensor value = axis->wrap(at::ones({2, 3}), {0, 1}, 4);
    const auto refused = ::testing::ThrowsMessage<std::exception>(
        ::testing::HasSubstr("parallel::local_value(x) for this rank's part, or parallel::whole_value(x)"));
    const auto read_pointer = [&] { (void)value.const_data_ptr<float>(); };
    const auto read_elements = [&] { (void)(value.accessor<float, 2>()); };
    EXPECT_THAT(read_pointer, refused);
    EXPECT_THAT(read_elements, refused);
  });
}

// The mask is what is not zero in the result; one process with that mask has the same values and gradients.
TEST(TensorRules, OfDropoutAreThoseOfOneProcessWithTheSameMask) {
  for (const int ranks : {2, 3}) {
    run_ranks(ranks, [](process::Process& process) {
      const auto axis = tensor::make_axis(process.group(), {});
      const at::Tensor weight = uneven_values({7, 40}, 3);
      for (const Cut& cut : {Cut{0, 1}, Cut{1, 1}, Cut{1, 2}}) {
        const auto given = uneven_values({7, 40}, 1).requires_grad_();
        const tensor::ForwardScope scope;
        const at::Tensor part =
            tensor::exchange(*axis, given, {tensor::ExchangeKind::kSlice, cut, given.size(cut.dim)});
        const at::Tensor found = at::dropout(axis->wrap(part, cut, given.size(cut.dim)), 0.25, true);
        (found * weight).sum().backward();

        const at::Tensor whole = whole_value(found.detach()), mask = whole.ne(0);
        const auto alone = given.detach().clone().requires_grad_();
        const at::Tensor expected = alone * mask / 0.75;
        (expected * weight).sum().backward();
        EXPECT_TRUE(at::allclose(whole, expected)) << "dim " << cut.dim;
        EXPECT_TRUE(at::allclose(given.grad(), alone.grad())) << "dim " << cut.dim;
        const double kept = mask.to(at::kDouble).mean().item<double>();
        EXPECT_GT(kept, 0.55);
        EXPECT_LT(kept, 0.95);
      }
    });
  }
}

}  // namespace
}  // namespace hasten::parallel
