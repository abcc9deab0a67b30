#include <stdexcept>
#include <string>

#include "program/step.h"

namespace twostroke {

namespace {

void require(bool holds, const char* otherwise) {
  if (!holds) throw std::invalid_argument(otherwise);
}

bool is_below(int64_t index, int64_t size) { return index >= 0 && index < size; }

void check_tokens(const Program& program, const StepInputs& in, int64_t blocks,
                  int64_t rope_positions) {
  for (int64_t i = 0; i < in.num_tokens; i++) {
    require(is_below(in.token_ids[i], program.num_embeddings),
            "a token id is outside the vocabulary");
    require(is_below(in.positions[i], rope_positions), "a position is outside the rope table");
    require(is_below(in.slots[i], blocks * kBlockTokens), "a slot is outside the cache");
  }
}

void check_sequences(const StepInputs& in, int64_t blocks) {
  require(in.cu_seqlens_q[0] == 0 && in.cu_seqlens_q[in.num_seqs] == in.num_tokens,
          "cu_seqlens_q does not run from 0 to the number of tokens");
  for (int64_t s = 0; s < in.num_seqs; s++) {
    const int64_t nq = in.cu_seqlens_q[s + 1] - in.cu_seqlens_q[s], len = in.context_lens[s];
    require(nq >= 1 && len >= nq, "a request has no tokens, or a context shorter than its tokens");
    const int64_t used = (len + kBlockTokens - 1) / kBlockTokens;
    require(used <= in.table_stride, "a context is longer than its block table");
    for (int64_t b = 0; b < used; b++)
      require(is_below(in.block_tables[s * in.table_stride + b], blocks),
              "a block id is outside the cache");
  }
}

void check_blocks(const StepInputs& in, int64_t blocks) {
  for (int64_t i = 0; i < in.num_new_blocks; i++)
    require(is_below(in.new_blocks[i], blocks), "a new block is outside the cache");
  for (int64_t i = 0; i < in.num_copies; i++) {
    const BlockCopy& copy = in.copies[i];
    require(is_below(copy.source, blocks) && is_below(copy.target, blocks) &&
                is_below(copy.num_tokens, kBlockTokens + 1),
            "a block copy is outside the cache");
  }
}

}  // namespace

void check_step(const Program& program, const StepInputs& in, const KvPool& kv,
                int64_t rope_positions) {
  require(&kv.kernels() == &program.kernels, "the cache belongs to another kernel set");
  if (in.num_tokens > program.max_tokens)
    throw std::invalid_argument("a step of " + std::to_string(in.num_tokens) +
                                " tokens exceeds the program's " +
                                std::to_string(program.max_tokens));
  require(program.num_layers <= kv.num_layers(), "the cache has fewer layers than the program");
  check_tokens(program, in, kv.num_blocks(), rope_positions);
  check_sequences(in, kv.num_blocks());
  for (int64_t r = 0; r < in.num_rows; r++)
    require(is_below(in.logit_rows[r], in.num_tokens), "a logit row is outside the step");
  check_blocks(in, kv.num_blocks());
}

}  // namespace twostroke
