// A language model over two workers: embedding and decoder live at the server, the LSTM here; one backward pass and one
// DistributedOptimizer over all of it.
//
// hasten launch --roles trainer=1,ps=1 rpc rnn. After torch.distributed's tutorial on RPC.
#include <hasten/process/process.h>
#include <hasten/rpc/rpc.h>
#include <torch/torch.h>

#include <iostream>

#include "arguments.h"

class EmbeddingTable {
 public:
  EmbeddingTable(int64_t num_tokens, int64_t width) : embedding_(num_tokens, width) {}
  torch::Tensor forward(const torch::Tensor& tokens) { return embedding_(tokens); }
  std::vector<torch::Tensor> parameters() const { return embedding_->parameters(); }

 private:
  torch::nn::Embedding embedding_;
};

class Decoder {
 public:
  Decoder(int64_t num_tokens, int64_t width) : linear_(width, num_tokens) {}
  torch::Tensor forward(const torch::Tensor& hidden) { return linear_(hidden); }
  std::vector<torch::Tensor> parameters() const { return linear_->parameters(); }

 private:
  torch::nn::Linear linear_;
};

// Runs where the module is: references to its parameters.
template <class M>
std::vector<hasten::rpc::RRef<torch::Tensor>> parameter_rrefs(const hasten::rpc::RRef<M>& module) {
  std::vector<hasten::rpc::RRef<torch::Tensor>> all;
  const auto here = hasten::rpc::call();
  for (const auto& one : module.local_value().parameters()) all.push_back(here.rref(one));
  return all;
}

int main(int argc, char** argv) {
  const example::Arguments arguments(argc, argv, "rnn [STEPS]");
  const int64_t num_tokens = 50, width = 16, length = 12, batch = 20, steps = arguments.number(1, 60);
  torch::manual_seed(0);
  torch::set_num_threads(1);
  hasten::process::Process process({.cpu = true});
  hasten::rpc::Functions functions;
  functions.add_class<EmbeddingTable, int64_t, int64_t>().add_class<Decoder, int64_t, int64_t>();
  functions.add<&EmbeddingTable::forward>().add<&Decoder::forward>();
  functions.add<&parameter_rrefs<EmbeddingTable>>().add<&parameter_rrefs<Decoder>>();
  hasten::rpc::Agent agent(process, functions);
  if (process.is_main_process()) {
    const auto embedding = agent.remote<EmbeddingTable>(1, num_tokens, width);
    const auto decoder = agent.remote<Decoder>(1, num_tokens, width);
    torch::nn::LSTM lstm(torch::nn::LSTMOptions(width, width));
    auto parameters = agent.sync<&parameter_rrefs<EmbeddingTable>>(1, embedding);
    for (const auto& one : agent.sync<&parameter_rrefs<Decoder>>(1, decoder)) parameters.push_back(one);
    for (const auto& one : lstm->parameters()) parameters.push_back(agent.rref(one));
    const hasten::rpc::DistributedOptimizer<torch::optim::SGD> optimizer(agent, parameters,
                                                                         torch::optim::SGDOptions(2.0));
    double first = 0, last = 0;
    for (int64_t step = 0; step < steps; ++step) {
      const auto start = torch::randint(num_tokens, {1, batch});
      const auto text =
          (start + torch::arange(length + 1).unsqueeze(1)) % num_tokens;  // each token follows from the last
      agent.autograd([&](hasten::rpc::AutogradContext& context) {
        const auto embedded = embedding.sync<&EmbeddingTable::forward>(text.slice(0, 0, length).contiguous());
        const auto hidden = std::get<0>(lstm(embedded));
        const auto scores = decoder.sync<&Decoder::forward>(hidden);
        const auto loss =
            torch::nn::functional::cross_entropy(scores.reshape({-1, num_tokens}), text.slice(0, 1).reshape({-1}));
        context.backward({loss});
        optimizer.step(context);
        last = loss.item<double>();
      });
      if (step == 0) first = last;
    }
    std::cout << "loss " << first << " at first, " << last << " after " << steps << " steps" << std::endl;
  }
  agent.shutdown();
  return 0;
}
