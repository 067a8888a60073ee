"""A GPT-2 of transformers, made small and untrained, through Accelerate: the loop of its documentation.

hasten launch -n 2 --for_gloo --cpu examples/python/fine_tuning.py

Or with one line changed, for hasten's data parallelism and optimizer steps as well: from hasten import Accelerator.
"""
import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader
from transformers import GPT2Config, GPT2LMHeadModel

LENGTH = 32


def main():
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    torch.manual_seed(0)
    # Sentences that count upwards from anywhere: each token tells the next.
    starts = torch.arange(64)
    sentences = (starts[:, None] + torch.arange(LENGTH)) % 64
    model = GPT2LMHeadModel(GPT2Config(vocab_size=64, n_positions=LENGTH, n_embd=64, n_layer=2, n_head=2,
                                       resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=0, eos_token_id=0))
    optimizer = torch.optim.AdamW(model.parameters(), 3e-3)
    loader = DataLoader(sentences, batch_size=8, shuffle=True)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for epoch in range(14):
        for batch in loader:
            with accelerator.accumulate(model):
                loss = model(input_ids=batch, labels=batch).loss
                accelerator.backward(loss)
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()
        loss = accelerator.reduce(loss.detach(), "mean")
        if epoch % 5 == 0:
            accelerator.print(f"epoch {epoch}: loss {loss.item():.3f}")
    assert loss < 1, loss
    accelerator.print("done")
    accelerator.end_training()


if __name__ == "__main__":
    main()
