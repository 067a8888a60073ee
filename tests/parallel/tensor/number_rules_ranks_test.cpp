// The rules of numbers: products, reductions, norms, losses, attention, and what runs on whole values. In double
// precision, what ranks compute of parts equals what one process computes, and so do all gradients. Sizes are random:
// many no number of ranks divides, and some are so small that a rank has nothing. Every tensor is cut at every place.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <optional>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "hasten/core/env.h"
#include "hasten/core/text.h"
#include "hasten/parallel/layout/placement.h"
#include "hasten/parallel/tensor/tensor_parallel.h"
#include "parallel/tensor/exchange.h"
#include "parallel/tensor/handler.h"
#include "support/ranks.h"

namespace hasten::parallel {
namespace {

using namespace hasten::testing;
using at::indexing::Slice;
using Random = std::mt19937_64;
using Tensors = std::vector<at::Tensor>;

struct NumberRule {
  const char* name = "";
  /// Draws arguments; those that are no floating ones have no gradient.
  std::function<Tensors(Random&)> arguments;
  std::function<at::Tensor(const Tensors&)> apply;
};

int64_t draw(Random& random, int64_t least, int64_t most) {
  return least + static_cast<int64_t>(random() % static_cast<uint64_t>(most - least + 1));
}

// A size that may be smaller than the number of ranks.
int64_t size(Random& random) {
  return draw(random, 1, 7);
}

// Values that no two elements share.
at::Tensor values(Random& random, at::IntArrayRef sizes) {
  int64_t numel = 1;
  for (const int64_t one : sizes) numel *= one;
  const double start = static_cast<double>(random() % 1000) * 0.01;
  return (at::arange(numel, at::kDouble) * 0.7 + start).sin().view(sizes);
}

at::Tensor integers(Random& random, at::IntArrayRef sizes, int64_t below) {
  const at::Tensor all = at::empty(sizes, at::kLong);
  for (int64_t i = 0; i < all.numel(); ++i) all.mutable_data_ptr<int64_t>()[i] = draw(random, 0, below - 1);
  return all;
}

at::Tensor three(Random& random) {
  return values(random, {size(random), size(random), size(random)});
}

/// A rule of one value [a, b, c].
NumberRule of_three(const char* name, const std::function<at::Tensor(const at::Tensor&)>& apply) {
  return {name, [](Random& random) { return Tensors{three(random)}; },
          [apply](const Tensors& x) { return apply(x[0]); }};
}

std::vector<NumberRule> reductions() {
  return {
      of_three("sum", [](const at::Tensor& x) { return x.sum(); }),
      of_three("sum of one", [](const at::Tensor& x) { return x.sum(1); }),
      of_three("sum of two",
               [](const at::Tensor& x) {
                 return x.sum(at::IntArrayRef{0, -1}, true);
               }),
      of_three("sum of none named", [](const at::Tensor& x) { return x.sum(at::IntArrayRef{}); }),
      of_three("mean", [](const at::Tensor& x) { return x.mean(); }),
      of_three("mean of one", [](const at::Tensor& x) { return x.mean(-1); }),
      of_three("mean of two",
               [](const at::Tensor& x) {
                 return x.mean(at::IntArrayRef{-3, 1}, true);
               }),
      of_three("amax",
               [](const at::Tensor& x) {
                 return x.amax(at::IntArrayRef{0, 2});
               }),
      of_three("amin", [](const at::Tensor& x) { return x.amin(1, true); }),
      of_three("max", [](const at::Tensor& x) { return x.max(); }),
      of_three("max of one", [](const at::Tensor& x) { return std::get<0>(x.max(1)); }),
      of_three("min of one", [](const at::Tensor& x) { return std::get<0>(x.min(-1, true)); }),
      of_three("argmax", [](const at::Tensor& x) { return x.gather(1, x.argmax(1, true)); }),
      of_three("argmin of the last", [](const at::Tensor& x) { return x.argmin(-1).to(at::kDouble) + x.sum(-1); }),
      of_three("argmax of all", [](const at::Tensor& x) { return x.flatten().select(0, 0) + x.argmax(); }),
      of_three("any", [](const at::Tensor& x) { return x.gt(0.3).any(1).to(at::kDouble) * x.sum(1); }),
      of_three("all", [](const at::Tensor& x) { return x.gt(-0.5).all(2, true) * x; }),
      of_three("logsumexp", [](const at::Tensor& x) { return x.logsumexp(at::IntArrayRef{1}); }),
      of_three("cumsum", [](const at::Tensor& x) { return x.cumsum(1); }),
      of_three("cumprod", [](const at::Tensor& x) { return x.cumprod(-1); }),
      of_three("prod", [](const at::Tensor& x) { return x.prod(1); }),
      of_three("var",
               [](const at::Tensor& x) {
                 return x.flatten(1).repeat({1, 2}).var(at::IntArrayRef{1});
               }),
      of_three("norm", [](const at::Tensor& x) { return x.norm(); }),
      of_three("norm of one", [](const at::Tensor& x) { return x.norm(2, {1}, true); }),
      of_three("vector norm", [](const at::Tensor& x) { return at::linalg_vector_norm(x, 3, at::IntArrayRef{0}); }),
      of_three("largest magnitude", [](const at::Tensor& x) { return at::linalg_vector_norm(x, INFINITY); }),
      of_three("softmax", [](const at::Tensor& x) { return x.softmax(1); }),
      of_three("softmax of the last", [](const at::Tensor& x) { return x.softmax(-1); }),
      of_three("log_softmax", [](const at::Tensor& x) { return x.log_softmax(1); }),
      of_three("softmax in another type", [](const at::Tensor& x) { return x.to(at::kFloat).softmax(1, at::kDouble); }),
      of_three("log_softmax in another type",
               [](const at::Tensor& x) { return x.to(at::kFloat).log_softmax(2, at::kDouble); }),
      of_three("topk", [](const at::Tensor& x) { return std::get<0>(x.topk(1, 1)); }),
      of_three("sort", [](const at::Tensor& x) { return std::get<0>(x.sort(-1, true)); }),
  };
}

NumberRule norm_of(const char* name, size_t dims,
                   const std::function<at::Tensor(const Tensors&, at::IntArrayRef)>& fn) {
  return {name,
          [dims](Random& random) {
            const at::Tensor x = three(random);
            const auto normalized = x.sizes().slice(3 - dims);
            return Tensors{x, values(random, normalized), values(random, normalized)};
          },
          [dims, fn](const Tensors& x) { return fn(x, x[0].sizes().slice(3 - dims)); }};
}

std::vector<NumberRule> norms() {
  const auto layer_norm = [](const Tensors& x, at::IntArrayRef of) { return at::layer_norm(x[0], of, x[1], x[2]); };
  const auto rms_norm = [](const Tensors& x, at::IntArrayRef of) { return at::rms_norm(x[0], of, x[1], 1e-5) + x[2]; };
  return {
      norm_of("layer_norm", 1, layer_norm),
      norm_of("layer_norm of two", 2, layer_norm),
      norm_of("rms_norm", 1, rms_norm),
      norm_of("rms_norm of two", 2, rms_norm),
      norm_of("layer_norm without weights", 1,
              [](const Tensors& x, at::IntArrayRef of) { return at::layer_norm(x[0], of) * x[1] + x[2]; }),
      {"group_norm",
       [](Random& random) {
         const int64_t channels = 2 * draw(random, 1, 3);
         return Tensors{values(random, {size(random), channels, size(random) + 1}), values(random, {channels}),
                        values(random, {channels})};
       },
       [](const Tensors& x) { return at::group_norm(x[0], 2, x[1], x[2]); }},
  };
}

// Sizes of x and y, by letters; equal letters are equal sizes, '1' is one.
std::function<Tensors(Random&)> of_letters(std::vector<std::string> shapes) {
  return [shapes = std::move(shapes)](Random& random) {
    std::map<char, int64_t> sizes = {{'1', 1}};
    Tensors all;
    for (const std::string& shape : shapes) {
      std::vector<int64_t> own;
      for (const char letter : shape) {
        if (sizes.find(letter) == sizes.end()) sizes[letter] = size(random);
        own.push_back(sizes[letter]);
      }
      all.push_back(values(random, own));
    }
    return all;
  };
}

at::Tensor product(const Tensors& x) {
  return at::matmul(x[0], x[1]);
}

NumberRule einsum_of(const char* equation, const std::vector<std::string>& shapes) {
  return {equation, of_letters(shapes), [equation](const Tensors& x) { return at::einsum(equation, x); }};
}

std::vector<NumberRule> products() {
  const auto affine = [](const Tensors& x) { return at::linear(x[0], x[1], x[2]); };
  return {
      {"mm", of_letters({"ab", "bc"}), [](const Tensors& x) { return at::mm(x[0], x[1]); }},
      {"bmm", of_letters({"nab", "nbc"}), [](const Tensors& x) { return at::bmm(x[0], x[1]); }},
      {"matmul of a batch and a matrix", of_letters({"nab", "bc"}), product},
      {"matmul of a matrix and a batch", of_letters({"ab", "nbc"}), product},
      {"matmul of heads", of_letters({"nhab", "nhbc"}), product},
      {"matmul that spreads y", of_letters({"nhab", "n1bc"}), product},
      {"matmul that spreads x", of_letters({"1hab", "nhbc"}), product},
      {"matmul that spreads both", of_letters({"1hab", "n1bc"}), product},
      {"matmul of a batch of fewer dimensions", of_letters({"hab", "nhbc"}), product},
      {"matmul of a vector and a matrix", of_letters({"b", "bc"}), product},
      {"matmul of a matrix and a vector", of_letters({"ab", "b"}), product},
      {"matmul of a batch and a vector", of_letters({"nab", "b"}), product},
      {"dot", of_letters({"a", "a"}), [](const Tensors& x) { return at::dot(x[0], x[1]); }},
      {"mv", of_letters({"ab", "b"}), [](const Tensors& x) { return at::mv(x[0], x[1]); }},
      {"outer", of_letters({"a", "b"}), [](const Tensors& x) { return at::outer(x[0], x[1]); }},
      {"addmm", of_letters({"c", "ab", "bc"}), [](const Tensors& x) { return at::addmm(x[0], x[1], x[2]); }},
      {"addmm of a matrix", of_letters({"ac", "ab", "bc"}),
       [](const Tensors& x) { return at::addmm(x[0], x[1], x[2]); }},
      {"addmm with factors", of_letters({"c", "ab", "bc"}),
       [](const Tensors& x) { return at::addmm(x[0], x[1], x[2], 0.5, -2); }},
      {"baddbmm", of_letters({"nac", "nab", "nbc"}), [](const Tensors& x) { return at::baddbmm(x[0], x[1], x[2]); }},
      {"linear", of_letters({"nab", "cb", "c"}), affine},
      {"linear of a matrix", of_letters({"ab", "cb", "c"}), affine},
      {"linear of a vector", of_letters({"b", "cb", "c"}), affine},
      {"linear to one", of_letters({"nab", "1b", "1"}), affine},
      {"linear without a bias", of_letters({"nab", "cb"}), [](const Tensors& x) { return at::linear(x[0], x[1]); }},
      einsum_of("nab,nbc->nac", {"nab", "nbc"}),
      einsum_of("nhqd,nhkd->nhqk", {"nhqd", "nhkd"}),
      einsum_of("nqhd,nkhd->nhqk", {"nqhd", "nkhd"}),
      einsum_of("ab,cb->ac", {"ab", "cb"}),
      einsum_of("na,nb->nab", {"na", "nb"}),
      einsum_of("nab->nb", {"nab"}),
      einsum_of("nab,b->na", {"nab", "b"}),
      {"conv1d", of_letters({"nca", "dc1", "d"}), [](const Tensors& x) { return at::conv1d(x[0], x[1], x[2]); }},
      {"conv2d",
       [](Random& random) {
         const int64_t in = size(random), out = size(random);
         return Tensors{values(random, {size(random), in, 2 + size(random), 2 + size(random)}),
                        values(random, {out, in, 3, 2}), values(random, {out})};
       },
       [](const Tensors& x) { return at::conv2d(x[0], x[1], x[2], 1, 1); }},
  };
}

std::vector<NumberRule> pointwise() {
  const auto add = [](const Tensors& x) { return x[0] + x[1]; };
  return {
      {"add", of_letters({"abc", "abc"}), add},
      {"add of fewer dimensions", of_letters({"abc", "bc"}), add},
      {"add to fewer dimensions", of_letters({"c", "abc"}), add},
      {"add that spreads the second", of_letters({"abc", "a1c"}), add},
      {"add that spreads the first", of_letters({"a1c", "abc"}), add},
      {"add that spreads both", of_letters({"1bc", "a1c"}), add},
      {"add of a number", of_letters({"abc", ""}), add},
      {"add in place", of_letters({"abc", "1b1"}), [](const Tensors& x) { return (x[0] * 2).add_(x[1]).mul_(x[1]); }},
      {"addcmul", of_letters({"abc", "b1", "abc"}),
       [](const Tensors& x) { return at::addcmul(x[0], x[1], x[2], 0.5); }},
      {"where", of_letters({"abc", "1b1"}), [](const Tensors& x) { return at::where(x[0] > x[1], x[0], x[1]); }},
      {"masked_fill", of_letters({"abc", "bc"}), [](const Tensors& x) { return x[0].masked_fill(x[1] > 0, -2.0); }},
      {"gelu and pow", of_letters({"abc", "abc"}), [](const Tensors& x) { return at::gelu(x[0]) * x[1].pow(2); }},
      {"frexp", of_letters({"abc"}),
       [](const Tensors& x) { return std::get<0>(at::frexp(x[0])) + std::get<1>(at::frexp(x[0])); }},
  };
}

std::vector<NumberRule> moves() {
  return {
      {"expand of ones", of_letters({"a1c"}),
       [](const Tensors& x) {
         return x[0].expand({2, x[0].size(0), 5, -1});
       }},
      {"stack of three", of_letters({"ab", "ab", "ab"}),
       [](const Tensors& x) {
         return at::stack({x[0], x[1], x[2]}, -2);
       }},
      {"cat", of_letters({"ab", "cb"}),
       [](const Tensors& x) {
         return at::cat({x[0], x[1]}, 0);
       }},
      of_three("narrow from the end", [](const at::Tensor& x) { return x.narrow(1, -1, 1); }),
      of_three("flip and roll", [](const at::Tensor& x) { return x.flip(1).roll(1, 2); }),
      of_three("triangle", [](const at::Tensor& x) { return x.tril(); }),
      of_three("pad",
               [](const at::Tensor& x) {
                 return at::constant_pad_nd(x, {1, 2});
               }),
      {"gather",
       [](Random& random) {
         const at::Tensor x = three(random);
         return Tensors{x, integers(random, {x.size(0), 3, x.size(2)}, x.size(1))};
       },
       [](const Tensors& x) { return x[0].gather(1, x[1]); }},
      {"index_select",
       [](Random& random) {
         const at::Tensor x = three(random);
         return Tensors{x, integers(random, {size(random)}, x.size(1))};
       },
       [](const Tensors& x) { return x[0].index_select(1, x[1]); }},
      {"index",
       [](Random& random) {
         const at::Tensor x = three(random);
         return Tensors{x, integers(random, {size(random)}, x.size(0)), integers(random, {1}, x.size(2))};
       },
       [](const Tensors& x) {
         return x[0].index({x[1], Slice(), x[2]});
       }},
      {"embedding",
       [](Random& random) {
         const at::Tensor table = values(random, {size(random), size(random)});
         return Tensors{table, integers(random, {size(random), size(random)}, table.size(0))};
       },
       [](const Tensors& x) { return at::embedding(x[0], x[1]); }},
      {"embedding with padding",
       [](Random& random) {
         const at::Tensor table = values(random, {1 + size(random), size(random)});
         return Tensors{table, integers(random, {size(random)}, table.size(0))};
       },
       [](const Tensors& x) { return at::embedding(x[0], x[1], 1); }},
  };
}

struct LossOptions {
  at::Reduction::Reduction reduction = at::Reduction::Mean;
  int64_t ignored = -100;
  double smoothing = 0;
  bool weighs = false;
};

// Scores of classes, targets, and weights of classes. One target at least counts, else a mean is no number.
NumberRule loss_of(const char* name, const std::vector<std::string>& shapes, const LossOptions& is, bool nll) {
  return {name,
          [shapes, is](Random& random) {
            Tensors all = of_letters({shapes[0]})(random);
            const int64_t classes = all[0].dim() > 1 ? all[0].size(1) : all[0].size(0);
            auto sizes = all[0].sizes().vec();
            sizes.erase(sizes.begin() + (sizes.size() > 1 ? 1 : 0));
            at::Tensor target = integers(random, sizes, classes);
            if (is.ignored >= 0) target.view({-1})[0] = (is.ignored + 1) % classes;
            if (is.ignored < 0) target.view({-1}).slice(0, 1).masked_fill_(target.view({-1}).slice(0, 1).eq(0), -100);
            all.push_back(target);
            all.push_back(values(random, {classes}).abs() + 0.1);
            return all;
          },
          [is, nll](const Tensors& x) {
            const at::Tensor weight = is.weighs ? x[2].detach() : at::Tensor();
            const at::Tensor loss =
                nll ? at::nll_loss_nd(x[0].log_softmax(1), x[1], weight, is.reduction, is.ignored)
                    : at::cross_entropy_loss(x[0], x[1], weight, is.reduction, is.ignored, is.smoothing);
            return loss + x[2].sum();
          }};
}

std::vector<NumberRule> losses() {
  using at::Reduction::Mean;
  using at::Reduction::None;
  using at::Reduction::Sum;
  std::vector<NumberRule> all;
  for (const auto reduction : {None, Mean, Sum}) {
    for (const bool nll : {false, true}) {
      all.push_back(loss_of(nll ? "nll_loss" : "cross_entropy", {"nc"}, {.reduction = reduction}, nll));
      all.push_back(loss_of(nll ? "nll_loss of sequences" : "cross_entropy of sequences", {"ncs"},
                            {.reduction = reduction}, nll));
      all.push_back(loss_of(nll ? "weighted nll_loss" : "weighted cross_entropy", {"nc"},
                            {.reduction = reduction, .weighs = true}, nll));
    }
    all.push_back(loss_of("smoothed cross_entropy", {"nc"}, {.reduction = reduction, .smoothing = 0.2}, false));
    all.push_back(
        loss_of("smoothed cross_entropy of sequences", {"ncs"}, {.reduction = reduction, .smoothing = 0.2}, false));
    all.push_back(loss_of("smoothed weighted cross_entropy", {"nc"},
                          {.reduction = reduction, .smoothing = 0.2, .weighs = true}, false));
    all.push_back({"cross_entropy of probabilities", of_letters({"nc", "nc"}), [reduction](const Tensors& x) {
                     return at::cross_entropy_loss(x[0], x[1].softmax(1), {}, reduction);
                   }});
    all.push_back({"mse_loss", of_letters({"ab", "ab"}),
                   [reduction](const Tensors& x) { return at::mse_loss(x[0], x[1], reduction); }});
    all.push_back({"smooth_l1_loss", of_letters({"ab", "ab"}),
                   [reduction](const Tensors& x) { return at::smooth_l1_loss(x[0], x[1], reduction); }});
    all.push_back({"binary_cross_entropy_with_logits", of_letters({"ab", "ab"}), [reduction](const Tensors& x) {
                     return at::binary_cross_entropy_with_logits(x[0], x[1].sigmoid(), {}, {}, reduction);
                   }});
    all.push_back({"kl_div", of_letters({"ab", "ab"}), [reduction](const Tensors& x) {
                     return at::kl_div(x[0].log_softmax(1), x[1].softmax(1), reduction);
                   }});
  }
  all.push_back(loss_of("cross_entropy of one sample", {"c"}, {}, false));
  return all;
}

struct AttentionOptions {
  bool is_causal = false, groups = false, scales = false;
  /// Letters of a mask that is added; none: no mask.
  std::string mask = {};
  bool mask_is_bool = false;
  /// Heads are a multiple of this number.
  int64_t heads_of = 1;
};

NumberRule attention_of(const char* name, const AttentionOptions& is) {
  return {name,
          [is](Random& random) {
            const int64_t kv_heads = is.heads_of * draw(random, 1, is.heads_of > 1 ? 1 : 3);
            const int64_t heads = is.groups ? kv_heads * draw(random, 1, 3) : kv_heads;
            const int64_t batch = size(random), queries = size(random), keys = size(random), width = size(random);
            Tensors all = {values(random, {batch, heads, queries, width}),
                           values(random, {batch, kv_heads, keys, width}),
                           values(random, {batch, kv_heads, keys, size(random)})};
            std::vector<int64_t> mask;
            for (const char letter : is.mask)
              mask.push_back(letter == 'n'   ? batch
                             : letter == 'h' ? heads
                             : letter == 'q' ? queries
                             : letter == 'k' ? keys
                                             : 1);
            if (!is.mask.empty()) all.push_back(values(random, mask));
            return all;
          },
          [is](const Tensors& x) {
            at::Tensor mask = is.mask.empty() ? at::Tensor() : x[3];
            // The first key is seen by all.
            if (is.mask_is_bool) mask = mask.gt(-0.5).logical_or(at::arange(mask.size(-1)).eq(0));
            return at::scaled_dot_product_attention(
                x[0], x[1], x[2], mask.defined() ? std::optional(mask) : std::nullopt, 0.0, is.is_causal,
                is.scales ? std::optional(0.3) : std::nullopt, is.groups);
          }};
}

std::vector<NumberRule> attentions(int64_t heads_of = 1) {
  return {
      attention_of("attention", {.heads_of = heads_of}),
      attention_of("causal attention", {.is_causal = true, .heads_of = heads_of}),
      attention_of("attention of groups", {.groups = true, .scales = true, .heads_of = heads_of}),
      attention_of("causal attention of groups", {.is_causal = true, .groups = true, .heads_of = heads_of}),
      attention_of("attention with a mask", {.mask = "nhqk", .heads_of = heads_of}),
      attention_of("attention with a mask of keys", {.mask = "n11k", .heads_of = heads_of}),
      attention_of("attention with a mask of positions", {.scales = true, .mask = "qk", .heads_of = heads_of}),
      attention_of("attention that hides keys",
                   {.groups = true, .mask = "n1qk", .mask_is_bool = true, .heads_of = heads_of}),
  };
}

// Two dimensional tensors are cut in blocks as well, where blocks divide.
std::vector<Cut> cuts_of(const at::Tensor& x) {
  std::vector<Cut> cuts;
  for (int64_t dim = 0; dim < x.dim(); ++dim) {
    for (const int64_t blocks : {1, 2, 3}) {
      if (x.size(dim) % blocks == 0) cuts.push_back({dim, blocks});
    }
  }
  return cuts;
}

struct NumberTrial {
  const NumberRule& rule;
  tensor::CutAxis& axis;
  Tensors arguments;
  std::vector<Cut> cuts;

  std::string words(const process::Process& process) const {
    std::string all = text(rule.name, " on rank ", process.rank(), '/', process.world_size(),
                           axis.options().sequence_parallel ? " (sequence parallel)" : "");
    for (size_t i = 0; i < arguments.size(); ++i)
      all += text(", [", join(arguments[i].sizes()), "] ", describe(cuts[i]));
    return all;
  }
};

at::Tensor leaf(const at::Tensor& x) {
  return x.is_floating_point() ? x.clone().requires_grad_() : x;
}

// Both, or neither, have a gradient; none counts as zeros.
bool has_equal_gradients(const at::Tensor& found, const at::Tensor& expected) {
  const at::Tensor none = at::zeros_like(found).detach();
  const at::Tensor a = found.grad().defined() ? found.grad() : none,
                   b = expected.grad().defined() ? expected.grad() : none;
  return at::allclose(a, b, 1e-10, 1e-11, true);
}

void expect_trial(process::Process& process, const NumberTrial& trial) {
  const std::string words = trial.words(process);
  Tensors alone, given, parts;
  for (const at::Tensor& x : trial.arguments) alone.push_back(leaf(x)), given.push_back(leaf(x));
  const at::Tensor expected = trial.rule.apply(alone);
  const at::Tensor weight = (at::arange(expected.numel(), at::kDouble) * 0.3 + 1).sin().view(expected.sizes());
  (expected * weight).sum().backward();

  const tensor::ForwardScope scope;
  for (size_t i = 0; i < given.size(); ++i) {
    const Cut& cut = trial.cuts[i];
    if (!cut.is_cut()) {
      parts.push_back(given[i]);
      continue;
    }
    const int64_t whole = given[i].size(cut.dim);
    const tensor::Exchange slice{tensor::ExchangeKind::kSlice, cut, whole};
    parts.push_back(trial.axis.wrap(tensor::exchange(trial.axis, given[i], slice), cut, whole));
  }
  at::Tensor found;
  try {
    found = trial.rule.apply(parts);
    (found * weight).sum().backward();
  } catch (const std::exception& error) {
    throw std::runtime_error(words + ": " + error.what());
  }

  ASSERT_EQ(found.sizes(), expected.sizes()) << words;
  EXPECT_EQ(found.scalar_type(), expected.scalar_type()) << words;
  const at::Tensor whole = whole_value(found.detach());
  EXPECT_TRUE(at::allclose(whole, expected, 1e-10, 1e-11, true)) << words << '\n' << whole << '\n' << expected;
  for (size_t i = 0; i < given.size(); ++i) {
    EXPECT_TRUE(!given[i].is_floating_point() || has_equal_gradients(given[i], alone[i]))
        << words << ": gradient of " << i << '\n'
        << given[i].grad() << '\n'
        << alone[i].grad();
  }
}

// Each argument alone at each place, then several at random ones.
void expect_rule(process::Process& process, const NumberRule& rule, Random& random, tensor::CutAxis& axis) {
  const Tensors arguments = rule.arguments(random);
  for (size_t i = 0; i < arguments.size(); ++i) {
    for (const Cut& cut : cuts_of(arguments[i])) {
      std::vector<Cut> cuts(arguments.size());
      cuts[i] = cut;
      expect_trial(process, {rule, axis, arguments, cuts});
    }
  }
  for (int trial = 0; trial < 4; ++trial) {
    std::vector<Cut> cuts;
    for (const at::Tensor& x : arguments) {
      const auto possible = cuts_of(x);
      const bool is_cut = !possible.empty() && random() % 3 != 0;
      cuts.push_back(is_cut ? possible[random() % possible.size()] : Cut{});
    }
    expect_trial(process, {rule, axis, arguments, cuts});
  }
}

void expect_rules(const std::vector<NumberRule>& rules, const tensor::AxisOptions& options = {}) {
  const int64_t trials = 2 * Environment::current().integer("HASTEN_TEST_SCALE").value_or(1);
  const uint64_t seed = std::random_device()();
  SCOPED_TRACE(text("seed ", seed));
  for (const int ranks : {2, 3, 4}) {
    run_ranks(ranks, [&](process::Process& process) {
      Random random(seed);
      tensor::AxisOptions other = options;
      other.sequence_parallel = true;
      const auto plain = tensor::make_axis(process.group(), options);
      const auto sequence = tensor::make_axis(process.group(), other);
      for (const NumberRule& rule : rules) {
        for (int64_t trial = 0; trial < trials; ++trial)
          expect_rule(process, rule, random, trial % 2 == 0 ? *plain : *sequence);
      }
    });
  }
}

TEST(NumberRules, OfReductionsAreThoseOfOneProcess) {
  expect_rules(reductions());
}
TEST(NumberRules, OfNormsAreThoseOfOneProcess) {
  expect_rules(norms());
}
TEST(NumberRules, OfProductsAreThoseOfOneProcess) {
  expect_rules(products());
}
TEST(NumberRules, OfSpreadValuesAreThoseOfOneProcess) {
  expect_rules(pointwise());
}
TEST(NumberRules, OfMovedValuesAreThoseOfOneProcess) {
  expect_rules(moves());
}
TEST(NumberRules, OfLossesAreThoseOfOneProcess) {
  expect_rules(losses());
}
TEST(NumberRules, OfAttentionAreThoseOfOneProcess) {
  expect_rules(attentions());
}
// 12 heads: 2, 3 and 4 ranks have equally many.
TEST(NumberRules, OfAttentionThatMovesHeadsAreThoseOfOneProcess) {
  expect_rules(attentions(12), {.name = "sp", .attention = tensor::SequenceAttention::kHeads});
}

// No rank has the row of such an index, and the sum of all ranks' parts would be zeros.
TEST(NumberRules, RefuseIndicesThatNoRankHas) {
  run_ranks(3, [](process::Process& process) {
    const auto axis = tensor::make_axis(process.group(), {});
    const at::Tensor table = axis->wrap(cut_tensor(at::ones({7, 2}), {0, 1}, 3, process.rank()), {0, 1}, 7);
    const at::Tensor scores = axis->wrap(cut_tensor(at::ones({2, 7}), {1, 1}, 3, process.rank()), {1, 1}, 7);
    for (const int64_t index : {int64_t{7}, int64_t{-1}}) {
      const at::Tensor ids = torch::tensor({int64_t{6}, index});
      const auto embed = [&] { (void)at::embedding(table, ids); };
      const auto compare = [&] { (void)at::cross_entropy_loss(scores, ids); };
      EXPECT_THAT(embed, ::testing::ThrowsMessage<c10::IndexError>(::testing::HasSubstr("index out of range in self")));
      EXPECT_THAT(compare, ::testing::ThrowsMessage<c10::IndexError>(::testing::HasSubstr("out of bounds")));
    }
    // The ignored index may be any.
    const at::Tensor ids = torch::tensor({int64_t{6}, int64_t{-100}});
    EXPECT_TRUE(at::isfinite(at::cross_entropy_loss(scores, ids)).item<bool>());
  });
}

TEST(NumberRules, RefuseNarrowPartsThatDoNotFit) {
  run_ranks(2, [](process::Process& process) {
    const auto axis = tensor::make_axis(process.group(), {});
    const at::Tensor value = axis->wrap(at::ones({2, 3}), {0, 1}, 4);
    for (const int64_t dim : {0, 1}) {
      const auto narrow = [&] { (void)value.narrow(dim, 2, 3); };
      EXPECT_THAT(narrow, ::testing::ThrowsMessage<c10::Error>(::testing::HasSubstr("exceeds dimension size")));
    }
  });
}

}  // namespace
}  // namespace hasten::parallel
