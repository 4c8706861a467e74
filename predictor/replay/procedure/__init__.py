"""The procedure of QSync's predictor: folders, arguments and answers of its runnable modules beside this folder."""
