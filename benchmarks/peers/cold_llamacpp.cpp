// The smallest llama.cpp process that answers: load, tokenise, one prefill, print the first token's id.
// Usage: cold_llamacpp MODEL.gguf THREADS PROMPT. cold_start.py compares twostroke with it.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "llama.h"

int main(int argc, char **argv) {
    if (argc != 4) return 2;
    llama_log_set([](ggml_log_level, const char *, void *) {}, nullptr);
    llama_backend_init();
    llama_model *model = llama_model_load_from_file(argv[1], llama_model_default_params());
    if (!model) return 1;
    llama_context_params params = llama_context_default_params();
    params.n_ctx = 2048;
    params.n_batch = params.n_ubatch = 512;
    params.n_threads = params.n_threads_batch = std::atoi(argv[2]);
    params.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_ENABLED;
    llama_context *context = llama_init_from_model(model, params);
    if (!context) return 1;

    const llama_vocab *vocab = llama_model_get_vocab(model);
    std::vector<llama_token> tokens(512);
    int32_t count = llama_tokenize(vocab, argv[3], static_cast<int32_t>(std::strlen(argv[3])), tokens.data(),
                                   static_cast<int32_t>(tokens.size()), true, true);
    if (count < 1) return 1;
    if (llama_decode(context, llama_batch_get_one(tokens.data(), count)) != 0) return 1;
    const float *logits = llama_get_logits_ith(context, -1);
    int32_t best = 0;
    for (int32_t id = 1; id < llama_vocab_n_tokens(vocab); ++id)
        if (logits[id] > logits[best]) best = id;
    std::printf("%d %d\n", count, best);
    std::fflush(stdout);
    std::_Exit(0);
}
