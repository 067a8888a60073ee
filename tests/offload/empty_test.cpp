#include "hasten/offload/load/empty.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "hasten/core/error.h"
#include "support/folder.h"

namespace hasten::offload {
namespace {

struct EmptyNetImpl : torch::nn::Module {
  EmptyNetImpl() {
    fc = register_module("fc", torch::nn::Linear(64, 64));
    inv_freq = register_buffer("inv_freq", 1.0 / torch::pow(10000.0, torch::arange(0, 32, 2, torch::kFloat) / 32));
    mask = register_buffer("mask", torch::ones({8, 8}).tril_());
    plain = torch::linspace(0, 1, 5);
    plain[2] = 7.5;  // a write through a view
    table = real([] { return torch::tensor({1.5, 2.5, 3.5}); });
    scalar = real([] { return torch::tensor(4.5); });
    rows = register_buffer("rows", real([] { return torch::tensor({{1, 2}, {3, 4}}, torch::kLong); }));
    from_memory = real([] { return torch::tensor(std::vector<float>{7, 8}); });
    norm = inv_freq.sum().item<double>();
    where = torch::nonzero(mask.select(0, 3));
  }
  torch::nn::Linear fc{nullptr};
  at::Tensor inv_freq, mask, plain, table, where, scalar, rows, from_memory;
  double norm = 0;
};
TORCH_MODULE(EmptyNet);

struct TiedPairImpl : torch::nn::Module {
  TiedPairImpl() {
    first = register_parameter("first", torch::randn({4, 4}));
    second = register_parameter("second", first);
  }
  at::Tensor first, second;
};
TORCH_MODULE(TiedPair);

TEST(EmptyWeights, ParametersHaveNoMemoryAndAllElseItsValues) {
  const EmptyNet plain;

  auto net = empty_weights([] { return EmptyNet(); });

  EXPECT_TRUE(net->fc->weight.is_meta() && net->fc->bias.is_meta());
  EXPECT_TRUE(net->fc->weight.requires_grad());
  const std::vector<at::Tensor> real{net->inv_freq, net->mask,   net->plain, net->table,
                                     net->where,    net->scalar, net->rows,  net->from_memory};
  for (size_t i = 0; i < real.size(); ++i) ASSERT_FALSE(real[i].is_meta()) << i;
  EXPECT_TRUE(net->inv_freq.equal(plain->inv_freq));
  EXPECT_TRUE(net->mask.equal(plain->mask));
  EXPECT_TRUE(net->plain.equal(plain->plain));
  EXPECT_TRUE(net->table.equal(plain->table));
  EXPECT_TRUE(net->where.equal(plain->where));
  EXPECT_TRUE(net->scalar.equal(plain->scalar));
  EXPECT_TRUE(net->rows.equal(plain->rows) && net->named_buffers()["rows"].is_same(net->rows));
  EXPECT_TRUE(net->from_memory.equal(plain->from_memory));
  EXPECT_EQ(net->norm, plain->norm);
  EXPECT_TRUE(net->named_buffers()["mask"].is_same(net->mask));
}

TEST(EmptyWeights, BuffersStayEmptyIfAsked) {
  auto net = empty_weights([] { return EmptyNet(); }, {.include_buffers = true});

  EXPECT_TRUE(net->mask.is_meta());
  EXPECT_FALSE(net->plain.is_meta());
}

TEST(EmptyWeights, TiesOfAConstructorAreKept) {
  auto net = empty_weights([] { return TiedPair(); });

  EXPECT_TRUE(net->first.is_same(net->second));
  materialize(*net);
  EXPECT_TRUE(net->first.is_same(net->second));
  EXPECT_FALSE(net->first.is_meta());
}

TEST(Materialize, GivesWhatPlainConstructionGives) {
  const auto make = [] {
    return torch::nn::Sequential(torch::nn::Conv2d(3, 4, 3), torch::nn::BatchNorm2d(4), torch::nn::Linear(8, 8),
                                 torch::nn::LayerNorm(torch::nn::LayerNormOptions({8})), torch::nn::Embedding(9, 5),
                                 torch::nn::PReLU(), torch::nn::Bilinear(3, 4, 5), torch::nn::GroupNorm(2, 4),
                                 torch::nn::ConvTranspose1d(2, 3, 3));
  };
  torch::manual_seed(7);
  auto plain = make();
  auto empty = empty_weights(make);
  EXPECT_EQ(empty_tensors(*empty).size(), plain->parameters().size());
  torch::manual_seed(7);

  materialize(*empty);

  const auto expected = plain->named_parameters(), given = empty->named_parameters();
  for (const auto& item : expected) EXPECT_TRUE(given[item.key()].equal(item.value())) << item.key();
  EXPECT_TRUE(empty_tensors(*empty).empty());
}

TEST(Materialize, RecurrentAndAttentionModulesAreThoseOfPlainConstruction) {
  const auto compare = [](const auto& make) {
    torch::manual_seed(3);
    auto plain = make();
    auto empty = empty_weights(make);
    torch::manual_seed(3);
    materialize(*empty);
    for (const auto& item : plain->named_parameters())
      EXPECT_TRUE(empty->named_parameters()[item.key()].equal(item.value())) << item.key();
  };

  compare([] { return torch::nn::LSTM(torch::nn::LSTMOptions(3, 4).num_layers(2)); });
  compare([] { return torch::nn::GRU(3, 4); });
  compare([] { return torch::nn::MultiheadAttention(8, 2); });
  compare([] { return torch::nn::TransformerEncoderLayer(8, 2); });
}

TEST(Materialize, OnlyFillsWhatIsAskedFor) {
  auto net = empty_weights([] { return EmptyNet(); });

  const auto filled = materialize(*net, {.only = {"fc.bias"}});

  EXPECT_EQ(filled, std::vector<std::string>{"fc.bias"});
  EXPECT_TRUE(net->fc->weight.is_meta());
  EXPECT_FALSE(net->fc->bias.is_meta());
}

TEST(Materialize, ATrainingStepWorksAfterwards) {
  auto net = empty_weights([] { return EmptyNet(); });
  materialize(*net);
  torch::optim::SGD optimizer(net->parameters(), 0.1);
  const at::Tensor before = net->fc->weight.detach().clone();

  net->fc->forward(torch::ones({2, 64})).sum().backward();
  optimizer.step();

  EXPECT_FALSE(net->fc->weight.equal(before));
}

TEST(EmptyWeights, UsingAnEmptyParameterNamesIt) {
  auto net = empty_weights([] { return EmptyNet(); });

  const auto words = testing::words_of<UsageError>([&] { net->fc->forward(torch::ones({1, 64})); });

  EXPECT_NE(words.find("the parameter 'fc."), std::string::npos) << words;
  EXPECT_NE(words.find("offload::materialize"), std::string::npos) << words;
}

struct PointerNetImpl : torch::nn::Module {
  explicit PointerNetImpl(bool in_real) {
    const auto fill = [] {
      at::Tensor values = torch::zeros({3});
      values.accessor<float, 1>()[1] = 5;
      return values;
    };
    table = register_buffer("table", in_real ? real(fill) : fill());
    weight = register_parameter("weight", torch::ones({3}));
  }
  at::Tensor table, weight;
};
TORCH_MODULE(PointerNet);

TEST(EmptyWeights, APointerAccessIsRefusedWithTheRemedyThatWorks) {
  const auto words = testing::words_of<UsageError>([] { empty_weights([] { return PointerNet(false); }); });
  auto net = empty_weights([] { return PointerNet(true); });

  EXPECT_NE(words.find("offload::real"), std::string::npos) << words;
  EXPECT_EQ(net->table[1].item<float>(), 5);
  EXPECT_TRUE(net->weight.is_meta());
}

TEST(EmptyWeights, ValuesOfAVectorAreRefusedWithTheRemedy) {
  struct VectorNetImpl : torch::nn::Module {
    VectorNetImpl() { table = register_buffer("table", torch::tensor(std::vector<float>{1, 2})); }
    at::Tensor table;
  };

  const auto words =
      testing::words_of<UsageError>([] { empty_weights([] { return std::make_shared<VectorNetImpl>(); }); });

  EXPECT_NE(words.find("offload::real"), std::string::npos) << words;
}

TEST(EmptyWeights, AModuleThatIsNeverFilledIsFreedWithWhatItsConstructorUsed) {
  const auto source = torch::ones({2});
  struct CopyNetImpl : torch::nn::Module {
    explicit CopyNetImpl(const at::Tensor& values) {
      weight = register_parameter("weight", torch::empty({2}));
      const torch::NoGradGuard no_grad;
      weight.copy_(values);
    }
    at::Tensor weight;
  };

  size_t uses_while_empty = 0;
  {
    const auto net = empty_weights([&] { return std::make_shared<CopyNetImpl>(source); });
    uses_while_empty = source.use_count();
  }

  EXPECT_GT(uses_while_empty, 1);
  EXPECT_EQ(source.use_count(), 1);
}

TEST(InitOnDevice, AnyOtherDeviceConstructsThere) {
  auto net = init_on_device(at::kCPU, [] { return torch::nn::Linear(2, 3); });

  EXPECT_TRUE(net->weight.is_cpu());
  EXPECT_TRUE(empty_tensors(*net).empty());
}

}  // namespace
}  // namespace hasten::offload
