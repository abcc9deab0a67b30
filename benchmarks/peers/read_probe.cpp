// Plain read of memory: how fast `threads` threads read `bytes` once, best and median of `passes`.
// Usage: read_probe BYTES THREADS PASSES. Prints one JSON object.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <vector>

namespace {

// Each thread sums its part in 64-byte steps with eight accumulators, so that it waits for loads, not adds.
uint64_t sum_part(const uint64_t *data, size_t words) {
    uint64_t sums[8] = {};
    for (size_t i = 0; i + 8 <= words; i += 8)
        for (size_t j = 0; j < 8; ++j) sums[j] += data[i + j];
    uint64_t total = 0;
    for (uint64_t sum : sums) total += sum;
    return total;
}

double timed_pass(const std::vector<uint64_t> &data, size_t threads, uint64_t &check) {
    size_t words = data.size() / threads / 8 * 8;
    std::vector<uint64_t> sums(threads);
    auto start = std::chrono::steady_clock::now();
    std::vector<std::thread> pool;
    for (size_t t = 0; t < threads; ++t)
        pool.emplace_back([&, t] { sums[t] = sum_part(data.data() + t * words, words); });
    for (auto &thread : pool) thread.join();
    std::chrono::duration<double> taken = std::chrono::steady_clock::now() - start;
    for (uint64_t sum : sums) check += sum;
    return taken.count();
}

}  // namespace

int main(int argc, char **argv) {
    if (argc != 4) return 2;
    size_t bytes = std::strtoull(argv[1], nullptr, 10);
    size_t threads = std::strtoull(argv[2], nullptr, 10);
    size_t passes = std::strtoull(argv[3], nullptr, 10);
    if (bytes < 64 || threads < 1 || passes < 1) return 2;
    std::vector<uint64_t> data(bytes / 8, 1);
    uint64_t check = 0;
    timed_pass(data, threads, check);
    std::vector<double> seconds;
    for (size_t i = 0; i < passes; ++i) seconds.push_back(timed_pass(data, threads, check));
    std::sort(seconds.begin(), seconds.end());
    double read = static_cast<double>(data.size() * 8);
    std::printf("{\"bytes\": %.0f, \"threads\": %zu, \"best_gb_per_s\": %.2f, \"median_gb_per_s\": %.2f}\n",
                read, threads, read / seconds.front() / 1e9, read / seconds[passes / 2] / 1e9);
    return check == 0;
}
