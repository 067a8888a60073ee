// A small language model cut as DTensor cuts it: parts, their first elements, and losses.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <map>
#include <string>
#include <vector>

#include "hasten/parallel/layout/placement.h"
#include "hasten/parallel/tensor/tensor_parallel.h"
#include "support/golden.h"
#include "support/ranks.h"

namespace hasten::parallel {
namespace {

using nlohmann::json;
using testing::GoldenCase;
using testing::GoldenTopic;

struct LayerImpl : torch::nn::Module {
  LayerImpl(int64_t hidden, int64_t ffn, int64_t num_heads)
      : heads(num_heads),
        norm1(torch::nn::LayerNormOptions({hidden})),
        norm2(torch::nn::LayerNormOptions({hidden})),
        q(hidden, hidden),
        k(hidden, hidden),
        v(hidden, hidden),
        o(hidden, hidden),
        up(hidden, ffn),
        down(ffn, hidden) {
    register_module("norm1", norm1);
    register_module("norm2", norm2);
    register_module("q", q);
    register_module("k", k);
    register_module("v", v);
    register_module("o", o);
    register_module("up", up);
    register_module("down", down);
  }
  at::Tensor forward(at::Tensor x) {
    const int64_t batch = x.size(0), tokens = x.size(1), width = x.size(2);
    const at::Tensor normed = norm1(x);
    const auto by_heads = [&](const at::Tensor& y) {
      return y.view({batch, tokens, heads, width / heads}).transpose(1, 2);
    };
    const at::Tensor attended = at::scaled_dot_product_attention(by_heads(q(normed)), by_heads(k(normed)),
                                                                 by_heads(v(normed)), {}, 0.0, /*is_causal=*/true);
    x = x + o(attended.transpose(1, 2).reshape({batch, tokens, width}));
    return x + down(at::gelu(up(norm2(x))));
  }

  int64_t heads;
  torch::nn::LayerNorm norm1, norm2;
  torch::nn::Linear q, k, v, o, up, down;
};
TORCH_MODULE(Layer);

struct NetImpl : torch::nn::Module {
  explicit NetImpl(const json& shape)
      : embed(shape.at("vocabulary").get<int64_t>(), shape.at("hidden").get<int64_t>()),
        norm(torch::nn::LayerNormOptions({shape.at("hidden").get<int64_t>()})),
        head(torch::nn::LinearOptions(shape.at("hidden").get<int64_t>(), shape.at("vocabulary").get<int64_t>())
                 .bias(false)) {
    register_module("embed", embed);
    for (int64_t i = 0; i < shape.at("layers").get<int64_t>(); ++i) {
      layers->push_back(
          Layer(shape.at("hidden").get<int64_t>(), shape.at("ffn").get<int64_t>(), shape.at("heads").get<int64_t>()));
    }
    register_module("layers", layers);
    register_module("norm", norm);
    register_module("head", head);
  }
  at::Tensor forward(const at::Tensor& ids) {
    at::Tensor x = embed(ids);
    for (const auto& layer : *layers) x = layer->as<LayerImpl>()->forward(x);
    return head(norm(x));
  }

  torch::nn::Embedding embed;
  torch::nn::ModuleList layers;
  torch::nn::LayerNorm norm;
  torch::nn::Linear head;
};
TORCH_MODULE(Net);

void flatten(const json& value, std::vector<double>& out) {
  if (value.is_array()) {
    for (const auto& item : value) flatten(item, out);
  } else {
    out.push_back(value.get<double>());
  }
}

at::Tensor floats(const json& value) {
  std::vector<double> all;
  flatten(value, all);
  return torch::tensor(all, at::kDouble).to(at::kFloat);
}

at::Tensor tokens(const json& rows) {
  std::vector<double> all;
  flatten(rows, all);
  return torch::tensor(all, at::kDouble).to(at::kLong).view({static_cast<int64_t>(rows.size()), -1});
}

// What one rank holds, and the losses that it sees.
json one_rank(const process::Process& process, const GoldenCase& golden) {
  Net net(golden.input.at("shape"));
  {
    const torch::NoGradGuard no_grad;
    for (auto& item : net->named_parameters()) {
      item.value().copy_(floats(golden.input.at("params").at(item.key())).view_as(item.value()));
    }
  }
  const TensorParallel cut(*net, process.group(),
                           {.plan = {{"embed", "embedding_rowwise"},
                                     {"head", "colwise"},
                                     {"layers.*.q", "colwise"},
                                     {"layers.*.k", "colwise"},
                                     {"layers.*.v", "colwise"},
                                     {"layers.*.o", "rowwise"},
                                     {"layers.*.up", "colwise"},
                                     {"layers.*.down", "rowwise"}}});
  json local = json::object(), first = json::object(), losses = json::array();
  const auto& wanted = golden.expected.at("ranks").at(static_cast<size_t>(process.rank()));
  for (const auto& item : net->named_parameters()) {
    local[item.key()] = item.value().sizes().vec();
    if (wanted.at("first").contains(item.key())) {
      first[item.key()] = item.value().const_data_ptr<float>()[0];
    }
  }
  torch::optim::SGD sgd(net->parameters(), golden.input.at("lr").get<double>());
  for (const auto& batch : golden.input.at("batches")) {
    sgd.zero_grad();
    const at::Tensor logits = net(tokens(batch.at(0)));
    const at::Tensor loss = at::cross_entropy_loss(logits.flatten(0, 1), tokens(batch.at(1)).flatten());
    losses.push_back(loss.item<float>());
    loss.backward();
    sgd.step();
  }
  return {{"local", local}, {"first", first}, {"losses", losses}};
}

TEST(TensorParallel, CutsAndTrainsAsDTensorDoes) {
  GoldenTopic topic("model_parallel", [](const GoldenCase& golden) { return golden.family == "tp"; });
  topic.tolerate({.absolute = 1e-5});

  topic.for_each([&](const GoldenCase& golden) {
    topic.judge(golden, [&] {
      const int world = testing::num_ranks_of(golden, "world");
      std::vector<json> ranks(static_cast<size_t>(world));
      testing::run_ranks(world, [&](process::Process& process) {
        ranks[static_cast<size_t>(process.rank())] = one_rank(process, golden);
      });
      return json{{"ranks", ranks}};
    });
  });

  topic.finish();
}

}  // namespace
}  // namespace hasten::parallel
