import { defineConfig } from "vitest/config";

// Two builds of one source: the console, and with `--mode analytics` the analytics page, whose report has one script and
// one style in the page itself. Addresses are relative and routes behind "#", so the built pages work under any path.
// Nothing is inlined: the console's policy allows neither inline scripts nor data: scripts.
export default defineConfig(({ mode }) => ({
  base: "./",
  publicDir: mode === "analytics" ? false : "public",
  esbuild: { jsx: "automatic", jsxImportSource: "preact" },
  build: {
    outDir: mode === "analytics" ? "../static/analytics" : "../static/console",
    emptyOutDir: true,
    assetsInlineLimit: 0,
    modulePreload: { polyfill: false },
    target: "es2022",
    reportCompressedSize: false,
    chunkSizeWarningLimit: 1_000,
    ...(mode === "analytics" && {
      cssCodeSplit: false,
      rollupOptions: {
        input: "src/analytics/main.tsx",
        output: { format: "iife", entryFileNames: "analytics.js", assetFileNames: "analytics[extname]" },
      },
    }),
  },
  server: {
    // `npm run dev` beside a running server.
    proxy: { "/v1": "http://127.0.0.1:19876" },
  },
  test: { include: ["test/**/*.test.ts", "test/**/*.test.tsx"], environment: "node" },
}));
